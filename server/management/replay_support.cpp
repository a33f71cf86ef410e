#include "server/management/replay_support.hpp"

#include <algorithm>
#include <cstring>

#include "protocol/wire/limits.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::nvml {

using server::ProtocolFault;

void Arguments::take(void* out, size_t size) {
  if (bytes_.size() < size) throw ProtocolFault{"a management query with too few bytes of arguments"};
  std::memcpy(out, bytes_.data(), size);
  bytes_.remove_prefix(size);
}

nvmlDevice Arguments::device() {
  auto index = value<uint32_t>();
  if (index >= devices_.size()) throw ProtocolFault{"a management query about a device that does not exist"};
  return devices_[index];
}

unsigned int Arguments::count() {
  auto count = value<uint32_t>();
  if (count > wire::kManagementItemsMax) throw ProtocolFault{"a management query for too many items"};
  return count;
}

std::string Arguments::text() {
  auto length = value<uint32_t>();
  if (length > wire::kManagementTextBytesMax || length > bytes_.size())
    throw ProtocolFault{"a management query with too long a text"};
  std::string text(bytes_.substr(0, length));
  bytes_.remove_prefix(length);
  return text;
}

Buffer Arguments::bytes(size_t size) {
  Buffer buffer(size);
  take(buffer.data(), size);
  return buffer;
}

Buffer Arguments::versioned(std::initializer_list<uint32_t> codes) {
  uint32_t code = 0;
  if (bytes_.size() >= sizeof code) std::memcpy(&code, bytes_.data(), sizeof code);
  if (std::find(codes.begin(), codes.end(), code) == codes.end())
    throw ProtocolFault{"a management query with a structure of unknown version"};
  return bytes(code & 0xffffff);
}

Buffer Arguments::items(int count, size_t item_bytes) {
  if (count <= 0 || unsigned(count) > wire::kManagementItemsMax)
    throw ProtocolFault{"a management query with too many items"};
  return bytes(size_t(count) * item_bytes);
}

void Arguments::end() const {
  if (!bytes_.empty()) throw ProtocolFault{"a management query with too many bytes of arguments"};
}

Buffer Arguments::room(bool wanted, unsigned int& items, size_t item_bytes) const {
  items = std::min(items, wire::kManagementItemsMax);
  return wanted ? Buffer(size_t(items) * item_bytes) : Buffer::none();
}

Buffer Arguments::text_room(unsigned int& room) const {
  room = std::min(room, wire::kManagementTextBytesMax);
  return Buffer(room);
}

void Values::text(const Buffer& buffer) {
  auto length = uint32_t(strnlen(buffer.begin(), buffer.bytes() > 0 ? buffer.bytes() - 1 : 0));
  value(length);
  bytes_.append(buffer.begin(), length);
}

void Values::items(const Buffer& buffer, unsigned int count, size_t item_bytes) {
  auto there = item_bytes ? uint32_t(std::min<size_t>(count, buffer.bytes() / item_bytes)) : 0u;
  value(there);
  bytes_.append(buffer.begin(), there * item_bytes);
}

}  // namespace gpuwire::nvml
