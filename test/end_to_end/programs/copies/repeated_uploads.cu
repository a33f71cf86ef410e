// "repeated_uploads FORM SEED BYTES [CHANGED]": copies bytes that follow from the seed to the device, in one copy, and
// compares what comes back. FORM: blocking, ordered (from pageable memory) or pinned. CHANGED: where one byte is
// another one. Ends when its standard input does.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../driver_check.hpp"

namespace {

void fill(unsigned char* out, size_t bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    uint64_t z = seed + (at / sizeof(uint64_t) + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    std::memcpy(out + at, &z, bytes - at < sizeof z ? bytes - at : sizeof z);
  }
}

}  // namespace

int main(int argc, char** argv) {
  DEMAND(argc >= 4);
  const std::string form = argv[1];
  const size_t bytes = std::strtoull(argv[3], nullptr, 10);
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  OK(cuInit(0));
  OK(cuDeviceGet(&device, 0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  OK(cuMemAlloc(&memory, bytes));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::vector<unsigned char> pageable(form == "pinned" ? 0 : bytes), back(bytes);
  void* pinned = nullptr;
  if (form == "pinned") OK(cuMemAllocHost(&pinned, bytes));
  auto* source = pinned ? static_cast<unsigned char*>(pinned) : pageable.data();
  fill(source, bytes, std::strtoull(argv[2], nullptr, 10));
  if (argc > 4) source[std::strtoull(argv[4], nullptr, 10)] ^= 1;
  if (form == "blocking") OK(cuMemcpyHtoD(memory, source, bytes));
  else OK(cuMemcpyHtoDAsync(memory, source, bytes, stream));
  OK(cuMemcpyDtoHAsync(back.data(), memory, bytes, stream));
  OK(cuStreamSynchronize(stream));
  DEMAND(std::memcmp(back.data(), source, bytes) == 0);
  std::puts("PASSED");
  std::fflush(stdout);
  while (std::getchar() != EOF) {}
  return 0;
}
