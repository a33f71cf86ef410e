#include "server/replay/module/printing.hpp"

#include <algorithm>
#include <string_view>

#include "protocol/fatbin/fatbin.hpp"
#include "protocol/fatbin/image_size.hpp"
#include "protocol/fatbin/linked_image.hpp"

namespace gpuwire::server {
namespace {

bool names_vprintf(std::span<const uint8_t> code) {
  const std::string_view text(reinterpret_cast<const char*>(code.data()), code.size());
  return text.find("vprintf") != text.npos;
}

bool entry_may_print(const fatbin::Entry& entry) {
  if (entry.kind == fatbin::Kind::other) return true;
  if (entry.compression == fatbin::Compression::none) return names_vprintf(entry.payload);
  auto code = fatbin::decompress(entry);
  return !code || names_vprintf(*code);
}

uint64_t searched_bytes(const fatbin::Entry& entry) {
  return entry.compression == fatbin::Compression::none ? entry.payload.size() : entry.decompressed_bytes;
}

// Returns whether code of the container can print. Subtracts the searched bytes from `room`.
bool container_may_print(std::span<const uint8_t> container, uint64_t& room) {
  auto entries = fatbin::read_container(container);
  if (!entries) return true;
  return std::any_of(entries->begin(), entries->end(), [&](const fatbin::Entry& entry) {
    const uint64_t bytes = searched_bytes(entry);
    if (bytes > room) return true;
    room -= bytes;
    return entry_may_print(entry);
  });
}

}  // namespace

bool may_print(std::span<const std::byte> bytes) {
  const std::span image(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  uint64_t room = kSearchedBytesMax;
  if (fatbin::is_linked_image(image)) {
    auto containers = fatbin::read_linked_image(image);
    return !containers || std::any_of(containers->begin(), containers->end(),
                                      [&](auto container) { return container_may_print(container, room); });
  }
  switch (fatbin::image_kind(image)) {
    case fatbin::ImageKind::wrapper: return true;
    case fatbin::ImageKind::container: return container_may_print(image, room);
    case fatbin::ImageKind::elf:
    case fatbin::ImageKind::text: return image.size() > room || names_vprintf(image);
  }
  return true;
}

}  // namespace gpuwire::server
