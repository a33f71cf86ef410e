// One large transfer: transfers KIND MIB. KIND: to, from (pageable memory), pinned-to, pinned-from, rows-to, rows-from
// (pitched), image (of a module). Checks what has arrived, prints PASSED at the end.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../../../examples/check.hpp"

namespace {

constexpr size_t kRowBytes = 4000, kPitchBytes = 4096;

void fill(unsigned char* data, size_t bytes) {
  unsigned word = 12345;
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>((word = word * 1103515245u + 12345u) >> 16);
}

int load_image(size_t bytes) {
  std::string image = ".version 7.0\n.target sm_70\n.address_size 64\n";
  image.reserve(bytes);
  // Nothing of a comment is the same twice, so none of it is known to the server.
  for (unsigned word = 1; image.size() + 64 < bytes;)
    image += "// " + std::to_string(word = word * 1664525u + 1013904223u) + "\n";
  image += ".visible .entry nothing() { ret; }\n";
  CUmodule module;
  CUfunction function;
  CHECK_RUNTIME(cudaFree(nullptr));
  return cuModuleLoadData(&module, image.c_str()) != CUDA_SUCCESS ||
         cuModuleGetFunction(&function, module, "nothing") != CUDA_SUCCESS;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const std::string kind = arguments[1];
  const size_t bytes = std::strtoull(arguments[2], nullptr, 10) << 20;
  bool wrong = false;
  if (kind == "image") {
    wrong = load_image(bytes) != 0;
  } else {
    unsigned char *host, *back, *device;
    CHECK_RUNTIME(cudaHostAlloc(&host, bytes, cudaHostAllocDefault));
    CHECK_RUNTIME(cudaHostAlloc(&back, bytes, cudaHostAllocDefault));
    std::vector<unsigned char> source(bytes), target(bytes);
    fill(source.data(), bytes);
    std::memcpy(host, source.data(), bytes);
    CHECK_RUNTIME(cudaMalloc(&device, bytes));
    const size_t rows = bytes / kPitchBytes;
    if (kind == "pinned-to") CHECK_RUNTIME(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice));
    else if (kind == "rows-to")
      CHECK_RUNTIME(
          cudaMemcpy2D(device, kPitchBytes, source.data(), kPitchBytes, kRowBytes, rows, cudaMemcpyHostToDevice));
    else CHECK_RUNTIME(cudaMemcpy(device, source.data(), bytes, cudaMemcpyHostToDevice));
    CHECK_RUNTIME(cudaDeviceSynchronize());
    if (kind == "pinned-from") {
      CHECK_RUNTIME(cudaMemcpyAsync(back, device, bytes, cudaMemcpyDeviceToHost));
      CHECK_RUNTIME(cudaDeviceSynchronize());
      wrong = std::memcmp(back, source.data(), bytes) != 0;
    } else if (kind == "rows-to" || kind == "rows-from") {
      CHECK_RUNTIME(
          cudaMemcpy2D(target.data(), kPitchBytes, device, kPitchBytes, kRowBytes, rows, cudaMemcpyDeviceToHost));
      for (size_t row = 0; row < rows; ++row)
        wrong |= std::memcmp(&target[row * kPitchBytes], &source[row * kPitchBytes], kRowBytes) != 0;
    } else {
      CHECK_RUNTIME(cudaMemcpy(target.data(), device, bytes, cudaMemcpyDeviceToHost));
      wrong = target != source;
    }
  }
  std::printf(wrong ? "FAILED\n" : "PASSED\n");
  return wrong;
}
