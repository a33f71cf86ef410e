#include "protocol/fatbin/linked_image.hpp"

#include <cstring>

#include "protocol/fatbin/image_size.hpp"

namespace gpuwire::fatbin {
namespace {

// Little-endian, like the containers behind it. Each container begins at a multiple of kAlignment, as drivers find them
// in programs.
struct Header {
  uint32_t magic = kLinkedImageMagic;
  uint32_t containers = 0;
};
constexpr size_t kAlignment = 16;

constexpr size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

tl::expected<std::vector<uint8_t>, Error> write_linked_image(std::span<const std::span<const uint8_t>> containers) {
  if (containers.empty() || containers.size() > kLinkedImageContainersMax)
    return fail("linked image: no containers, or too many");
  size_t bytes = aligned(sizeof(Header));
  for (const auto& container : containers) bytes += aligned(container.size());
  std::vector<uint8_t> out(bytes);
  const Header header{.containers = static_cast<uint32_t>(containers.size())};
  std::memcpy(out.data(), &header, sizeof header);
  size_t offset = aligned(sizeof header);
  for (const auto& container : containers) {
    std::memcpy(out.data() + offset, container.data(), container.size());
    offset += aligned(container.size());
  }
  return out;
}

bool is_linked_image(std::span<const uint8_t> image) {
  uint32_t magic = 0;
  if (image.size() < sizeof magic) return false;
  std::memcpy(&magic, image.data(), sizeof magic);
  return magic == kLinkedImageMagic;
}

tl::expected<std::vector<std::span<const uint8_t>>, Error> read_linked_image(std::span<const uint8_t> image) {
  Header header;
  if (image.size() < sizeof header) return fail("linked image: shorter than its header");
  std::memcpy(&header, image.data(), sizeof header);
  if (header.magic != kLinkedImageMagic || header.containers == 0 || header.containers > kLinkedImageContainersMax) {
    return fail("linked image: a damaged header");
  }
  std::vector<std::span<const uint8_t>> out;
  size_t offset = aligned(sizeof header);
  for (uint32_t i = 0; i < header.containers; ++i) {
    if (offset >= image.size()) return fail("linked image: a container is missing");
    const auto bytes = container_bytes(image.subspan(offset));
    if (!bytes) return tl::unexpected(bytes.error());
    if (*bytes > image.size() - offset) return fail("linked image: a container reaches beyond the image");
    out.push_back(image.subspan(offset, *bytes));
    offset += aligned(*bytes);
  }
  return out;
}

LinkedWrapper::LinkedWrapper(std::span<const std::span<const uint8_t>> containers) {
  for (const auto& container : containers.subspan(1)) linked_from_.push_back(container.data());
  linked_from_.push_back(nullptr);
  header_.container = containers.front().data();
  header_.linked_from = linked_from_.data();
}

}  // namespace gpuwire::fatbin
