// Tests whether a tenant finds another one's data in memory. "fill MIB" allocates this much memory, fills it with a
// pattern, and ends without freeing it. "count MIB" allocates this much in every way and counts the words that are not
// zero. "hold MIB" only allocates this much, and waits for the end of its input. Prints "found N of M words"; run fill
// as one tenant, then count as another.
#include <cuda.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kMiB = 1u << 20, kPieceBytes = 16 * kMiB, kBlockBytes = 64 * kMiB;
constexpr unsigned kPattern = 0xa5c3'96e1;

#define MUST(call)                                                                \
  do {                                                                            \
    CUresult must_ = (call);                                                      \
    if (must_ != CUDA_SUCCESS) {                                                  \
      std::fprintf(stderr, "memory_clearing: %s: error %d\n", #call, int(must_)); \
      std::_Exit(2);                                                              \
    }                                                                             \
  } while (0)

uint64_t words_not_zero(CUdeviceptr address, uint64_t bytes) {
  static std::vector<uint32_t> words(kPieceBytes / 4);
  uint64_t found = 0;
  for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
    uint64_t piece = std::min(kPieceBytes, bytes - at);
    MUST(cuMemcpyDtoH(words.data(), address + at, piece));
    for (uint64_t i = 0; i < piece / 4; ++i) found += words[i] != 0;
  }
  return found;
}

void take(uint64_t bytes, bool fill) {
  for (uint64_t at = 0; at < bytes; at += kBlockBytes) {
    CUdeviceptr block = 0;
    MUST(cuMemAlloc(&block, kBlockBytes));
    if (fill) MUST(cuMemsetD32(block, kPattern, kBlockBytes / 4));
  }
  MUST(cuCtxSynchronize());
  std::printf("%s %" PRIu64 " MiB\n", fill ? "filled" : "holds", bytes / kMiB);
}

CUdeviceptr physical(uint64_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MUST(cuMemCreate(&handle, bytes, &properties, 0));
  MUST(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  MUST(cuMemMap(address, bytes, 0, handle, 0));
  MUST(cuMemSetAccess(address, bytes, &access, 1));
  return address;
}

bool count(uint64_t bytes) {
  uint64_t found = 0, looked = 0;
  auto look = [&](CUdeviceptr address, uint64_t size) {
    found += words_not_zero(address, size);
    looked += size / 4;
  };
  // All blocks stay allocated, so that each block is new.
  for (uint64_t at = 0; at + 3 * kBlockBytes <= bytes; at += 3 * kBlockBytes) {
    CUdeviceptr plain = 0, ordered = 0;
    MUST(cuMemAlloc(&plain, kBlockBytes));
    look(plain, kBlockBytes);
    MUST(cuMemAllocAsync(&ordered, kBlockBytes, nullptr));
    MUST(cuCtxSynchronize());
    look(ordered, kBlockBytes);
    look(physical(kBlockBytes), kBlockBytes);
  }
  for (uint64_t small : {4096u, 65536u, 700'000u}) {
    CUdeviceptr plain = 0;
    MUST(cuMemAlloc(&plain, small));
    look(plain, small);
  }
  std::printf("found %" PRIu64 " of %" PRIu64 " words\n", found, looked);
  return found == 0 && looked > 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string what = argc == 3 ? argv[1] : "";
  uint64_t bytes = argc == 3 ? std::strtoull(argv[2], nullptr, 10) * kMiB : 0;
  if ((what != "fill" && what != "hold" && what != "count") || bytes < 3 * kBlockBytes) {
    std::fprintf(stderr, "usage: memory_clearing fill|hold|count MIB (at least 192)\n");
    return 2;
  }
  CUcontext context = nullptr;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  bool right = true;
  if (what != "count") take(bytes, what == "fill");
  else right = count(bytes);
  std::fflush(stdout);
  while (what == "hold" && std::getchar() != EOF) {}
  if (right) std::printf("PASSED\n");
  std::fflush(stdout);
  std::_Exit(right ? 0 : 1);
}
