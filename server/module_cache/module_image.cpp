#include "server/module_cache/module_image.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace gpuwire::server {

namespace {

size_t page_bytes() {
  static const size_t bytes = size_t(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t with_zero_page(size_t bytes) { return (bytes + 2 * page_bytes() - 1) / page_bytes() * page_bytes(); }

}  // namespace

std::shared_ptr<ModuleImage> ModuleImage::create(size_t bytes, HostCharge charge) {
  size_t mapped = with_zero_page(bytes);
  if (bytes == 0 || mapped < bytes) return nullptr;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::shared_ptr<ModuleImage> image(new ModuleImage(static_cast<std::byte*>(memory), bytes, mapped));
  image->charge_ = std::move(charge);
  return image;
}

std::shared_ptr<ModuleImage> ModuleImage::map(int descriptor, size_t bytes) {
  size_t mapped = with_zero_page(bytes);
  if (bytes == 0 || mapped < bytes) return nullptr;
  void* memory = mmap(nullptr, mapped, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::shared_ptr<ModuleImage> image(new ModuleImage(static_cast<std::byte*>(memory), bytes, mapped));
  if (mmap(memory, bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED | MAP_POPULATE, descriptor, 0) == MAP_FAILED)
    return nullptr;
  return image;
}

ModuleImage::~ModuleImage() { munmap(data_, mapped_bytes_); }

}  // namespace gpuwire::server
