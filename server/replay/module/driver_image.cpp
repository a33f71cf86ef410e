#include "server/replay/module/driver_image.hpp"

#include <span>

#include "protocol/fatbin/image_size.hpp"

namespace gpuwire::server {
namespace {

std::span<const uint8_t> unsigned_bytes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

// Returns whether the image's own length lies within the received bytes, since the driver gets no length. A wrapper is
// refused, because it holds pointers.
bool well_formed(std::span<const std::byte> bytes) {
  std::span<const uint8_t> image = unsigned_bytes(bytes);
  tl::expected<uint64_t, fatbin::Error> size = 0;
  switch (fatbin::image_kind(image)) {
    case fatbin::ImageKind::wrapper: return false;
    case fatbin::ImageKind::container: size = fatbin::container_bytes(image); break;
    case fatbin::ImageKind::elf: size = fatbin::elf_bytes(image); break;
    case fatbin::ImageKind::text: return true;
  }
  return size && *size <= image.size();
}

}  // namespace

const void* driver_image(const ModuleImage& image, std::shared_ptr<const fatbin::LinkedWrapper>& wrapper) {
  std::span<const uint8_t> bytes = unsigned_bytes(image.bytes());
  if (!fatbin::is_linked_image(bytes)) return well_formed(image.bytes()) ? bytes.data() : nullptr;
  auto containers = fatbin::read_linked_image(bytes);
  if (!containers) return nullptr;
  wrapper = std::make_shared<fatbin::LinkedWrapper>(*containers);
  return wrapper->image();
}

}  // namespace gpuwire::server
