#include "client_stub/nvml/query.hpp"

#include <algorithm>

#include "client_stub/nvml/connection.hpp"
#include "protocol/wire/limits.hpp"
#include "protocol/wire/terminal_text.hpp"

namespace gpuwire::nvml {

Query::Query(uint32_t function, Kept kept) noexcept : function_(function), kept_(kept) {
  int status = kSuccess;
  connection_ = connection(status);
  fail(status);
}

Query::~Query() = default;

void Query::append(const void* data, size_t size) noexcept {
  if (status_ != kSuccess) return;
  if (arguments_.size() + size > wire::kManagementArgumentBytesMax) return fail(kInvalidArgument);
  try {
    arguments_.append(static_cast<const char*>(data), size);
  } catch (...) {
    fail(kMemory);
  }
}

void Query::device(nvmlDevice device) noexcept {
  uint32_t index = 0;
  if (status_ != kSuccess) return;
  if (!device_index(device, index) || index >= connection_->facts().devices.size()) return fail(kInvalidArgument);
  value(index);
}

void Query::text_room(const char* out, uint32_t room) noexcept {
  if (!out) return fail(kInvalidArgument);
  if (room == 0) fail(kInsufficientSize);
}

void Query::text(const char* text) noexcept {
  if (!text) return fail(kInvalidArgument);
  uint32_t length = uint32_t(strnlen(text, wire::kManagementTextBytesMax));
  value(length);
  append(text, length);
}

void Query::bytes(const void* structure, size_t size) noexcept {
  if (!structure) return fail(kInvalidArgument);
  append(structure, size);
}

void Query::versioned(const void* structure, std::initializer_list<uint32_t> codes) noexcept {
  if (!structure) return fail(kInvalidArgument);
  uint32_t code = 0;
  std::memcpy(&code, structure, sizeof code);
  if (std::find(codes.begin(), codes.end(), code) == codes.end()) return fail(kArgumentVersionMismatch);
  append(structure, code & 0xffffff);
}

unsigned int Query::count(const unsigned int* count) noexcept {
  if (!count) {
    fail(kInvalidArgument);
    return 0;
  }
  unsigned int bounded = std::min(*count, wire::kManagementItemsMax);
  value(bounded);
  return bounded;
}

void Query::items(const void* items, int count, size_t item_bytes) noexcept {
  if (!items || count <= 0) return fail(kInvalidArgument);
  append(items, size_t(count) * item_bytes);
}

bool Query::send() noexcept {
  if (status_ != kSuccess) return false;
  try {
    answered_ = kept_ == Kept::always ? connection_->ask_once(function_, arguments_, values_)
                                      : connection_->ask(function_, arguments_, values_);
  } catch (...) {
    answered_ = kMemory;
  }
  // A reply that reports insufficient room also has the required size.
  bool has_values = answered_ == kSuccess || (answered_ == kInsufficientSize && !values_.empty());
  if (!has_values) status_ = answered_;
  return has_values;
}

bool Query::take_raw(void* out, size_t size) noexcept {
  if (status_ != kSuccess || (answered_ != kSuccess && taken_ == values_.size())) return false;
  if (values_.size() - taken_ < size) {
    fail(kUnknown);
    return false;
  }
  std::memcpy(out, values_.data() + taken_, size);
  taken_ += size;
  return true;
}

void Query::take_text(char* out, uint32_t room) noexcept {
  uint32_t length = 0;
  take(&length);
  if (status_ != kSuccess || room == 0) return;
  if (length >= room) return fail(kUnknown);
  if (!take_raw(out, length)) return;
  wire::blank_unshown(out, length);  // the program may print the text
  out[length] = 0;
}

void Query::take_versioned(void* out) noexcept {
  uint32_t code = 0;
  std::memcpy(&code, out, sizeof code);
  take_raw(out, code & 0xffffff);
}

void Query::take_items(void* out, uint32_t room, size_t item_bytes) noexcept {
  uint32_t items = 0;
  take(&items);
  if (status_ != kSuccess || items == 0) return;
  if (!out || items > room) return fail(kUnknown);
  take_raw(out, size_t(items) * item_bytes);
}

int Query::finish() noexcept {
  if (status_ == kSuccess && taken_ != values_.size()) return kUnknown;
  return status_ != kSuccess ? status_ : answered_;
}

int refuse(int status) noexcept {
  int state = kSuccess;
  connection(state);
  return state == kUninitialized ? state : status;
}

}  // namespace gpuwire::nvml
