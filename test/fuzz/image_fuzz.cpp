// The input is a program image from a client. The target runs all code that reads an image before the driver: sizes,
// containers, compressed parts, charges. No code reads past the image's end, and nothing is decompressed before it is
// charged.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "protocol/fatbin/fatbin.hpp"
#include "protocol/fatbin/image_size.hpp"
#include "server/ledger/worker/image_bytes.hpp"
#include "server/replay/module/driver_image.hpp"
#include "test/fuzz/frame_fuzz.hpp"

namespace {

using namespace gpuwire;
using namespace gpuwire::server;

// A small tenant's limit: an image beyond it is refused because of its header.
constexpr uint64_t kHostBytesMax = 1u << 20;

void read_containers(std::span<const uint8_t> image) {
  auto entries = fatbin::read_container(image);
  if (!entries) return;
  for (const fatbin::Entry& entry : *entries) {
    if (entry.decompressed_bytes > kHostBytesMax) continue;
    auto contents = fatbin::decompress(entry);
    if (contents && entry.compression != fatbin::Compression::none && contents->size() > entry.decompressed_bytes)
      std::abort();
  }
  fatbin::select_entry(*entries, {8, 0});
  fatbin::select_entry(*entries, {9, 0}, true);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  std::span<const uint8_t> bytes(data + 1, size - 1);
  read_containers(bytes);
  if (auto containers = fatbin::read_linked_image(bytes)) {
    for (std::span<const uint8_t> container : *containers) read_containers(container);
  }
  cubin_device_bytes(bytes);
  ptx_device_bytes(bytes);
  auto image = ModuleImage::create(bytes.size());
  if (!image) std::abort();
  std::memcpy(image->writable().data(), bytes.data(), bytes.size());
  std::shared_ptr<const fatbin::LinkedWrapper> wrapper;
  const void* given = driver_image(*image, wrapper);
  if (!given) return 0;
  auto host = image_host_bytes(given);
  if (host && host->while_loading <= kHostBytesMax) image_device_bytes(given);
  return 0;
}
