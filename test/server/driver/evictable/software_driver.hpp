// The table of two software devices, with the layer of evictable memory in front of it or without.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include <dlfcn.h>
#include <doctest/doctest.h>

#include "server/driver/evictable/evictable_memory.hpp"
#include "server/driver_table.hpp"

namespace gpuwire::test {

inline constexpr uint64_t kMiB = 1u << 20;
inline constexpr uint64_t kDeviceBytes = 128 * kMiB;
// Two chunks of the largest size, and one that is smaller.
inline constexpr uint64_t kBlockBytes = 10 * kMiB, kChunkBytes = 4 * kMiB;

inline const server::DriverTable& software_driver() {
  static const server::DriverTable table = [] {
    ::setenv("GPUWIRE_SOFTWARE_DEVICES", "2", 1);
    ::setenv("GPUWIRE_SOFTWARE_MEMORY_BYTES", "134217728", 1);
    void* library = ::dlopen(GPUWIRE_TEST_SOFTWARE_CUDA, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library);
    server::DriverTable loaded;
    REQUIRE(server::load_driver_table(library, loaded) > 400);
    REQUIRE(loaded.cuInit(0) == CUDA_SUCCESS);
    return loaded;
  }();
  return table;
}

// A driver with a context on each device; the first one is current.
class SoftwareDriver {
 public:
  // `driver`: the software device's table, perhaps with functions that fail.
  explicit SoftwareDriver(bool layered, const server::DriverTable& driver = software_driver(),
                          std::function<bool()> captures = {})
      : cuda(driver) {
    if (layered) {
      layer = std::make_unique<server::EvictableMemory>(
          driver, server::EvictableMemory::Settings{.chunk_bytes_max = kChunkBytes, .captures = std::move(captures)});
      layer->put_before(cuda);
    }
    for (int device = 1; device >= 0; --device) {
      REQUIRE(cuda.cuDevicePrimaryCtxRetain(&contexts[device], device) == CUDA_SUCCESS);
      REQUIRE(cuda.cuCtxSetCurrent(contexts[device]) == CUDA_SUCCESS);
    }
  }
  ~SoftwareDriver() {
    for (int device = 0; device < 2; ++device) CHECK(cuda.cuDevicePrimaryCtxReset_v2(device) == CUDA_SUCCESS);
  }
  SoftwareDriver(const SoftwareDriver&) = delete;
  SoftwareDriver& operator=(const SoftwareDriver&) = delete;

  CUdeviceptr allocate(uint64_t bytes = kBlockBytes) {
    CUdeviceptr address = 0;
    REQUIRE(cuda.cuMemAlloc_v2(&address, bytes) == CUDA_SUCCESS);
    return address;
  }
  uint64_t free_bytes() {
    size_t free = 0, total = 0;
    CHECK(cuda.cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
    return free;
  }
  // Writes words that depend on the address and the seed, and compares them.
  void fill(CUdeviceptr address, uint64_t bytes, uint32_t seed) {
    const std::vector<uint32_t> words = pattern(bytes, seed);
    REQUIRE(cuda.cuMemcpyHtoD_v2(address, words.data(), bytes) == CUDA_SUCCESS);
  }
  bool has(CUdeviceptr address, uint64_t bytes, uint32_t seed) {
    std::vector<uint32_t> words(bytes / sizeof(uint32_t));
    return cuda.cuMemcpyDtoH_v2(words.data(), address, bytes) == CUDA_SUCCESS && words == pattern(bytes, seed);
  }

  server::DriverTable cuda;
  std::unique_ptr<server::EvictableMemory> layer;
  CUcontext contexts[2]{};

 private:
  static std::vector<uint32_t> pattern(uint64_t bytes, uint32_t seed) {
    std::vector<uint32_t> words(bytes / sizeof(uint32_t));
    for (size_t i = 0; i < words.size(); ++i) words[i] = uint32_t(i) * 2654435761u + seed;
    return words;
  }
};

}  // namespace gpuwire::test
