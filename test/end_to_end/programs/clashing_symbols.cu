// A program with functions of the same names as functions in the client's libraries, and its own operator new: all are
// visible to loaded libraries, and only the program may call them.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#include "../../../examples/check.hpp"

namespace {

bool g_foreign = false;  // the program is inside a CUDA call

}  // namespace

#define CLASHES(name)                                   \
  extern "C" long name() {                              \
    std::fprintf(stderr, "%s of the program\n", #name); \
    std::abort();                                       \
  }
CLASHES(SSL_new)
CLASHES(SSL_read)
CLASHES(SSL_write)
CLASHES(SSL_CTX_new)
CLASHES(EVP_DigestInit_ex)
CLASHES(EVP_MD_CTX_new)
CLASHES(CRYPTO_malloc)
CLASHES(RAND_bytes)
CLASHES(ZSTD_decompress)
CLASHES(ZSTD_trace_decompress_begin)
CLASHES(ucp_init_version)
CLASHES(_ZN5capnp13MessageReaderC2ENS_13ReaderOptionsE)
CLASHES(_ZN5capnp14MessageBuilderC2Ev)
CLASHES(_ZNSt13runtime_errorC1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE)

#ifndef __CUDA_ARCH__  // kernels have operators of their own
void* operator new(std::size_t bytes) {
  if (g_foreign) std::abort();
  void* memory = std::malloc(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  if (g_foreign) std::abort();
  std::free(memory);
}
#endif

__global__ void add(int* values, int n) {
  const int at = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (at < n) values[at] += at;
}

int main() {
  constexpr int kCount = 1000;
  static int values[kCount];
  std::string own(1000, 'x');  // uses the program's operator new
  g_foreign = true;
  int* memory = nullptr;
  CHECK_RUNTIME(cudaMalloc(&memory, sizeof values));
  CHECK_RUNTIME(cudaMemset(memory, 0, sizeof values));
  add<<<4, 256>>>(memory, kCount);
  CHECK_RUNTIME(cudaMemcpy(values, memory, sizeof values, cudaMemcpyDeviceToHost));
  CHECK_RUNTIME(cudaFree(memory));
  g_foreign = false;
  for (int i = 0; i < kCount; ++i) {
    if (values[i] != i) return 1;
  }
  std::printf("PASSED\n");
}
