// Operations of streams on single words: a stream waits until another one, a kernel or a later write sets the word.
// Plain, in one batch, and captured into a graph that runs again and again.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "../../../../examples/check.hpp"

__global__ void store(unsigned* at, unsigned value) { *at = value; }
__global__ void add(unsigned* at, const unsigned* by) { *at += *by; }

static CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

static unsigned read(const unsigned* at) {
  unsigned value = 0;
  CHECK_RUNTIME(cudaDeviceSynchronize());
  CHECK_RUNTIME(cudaMemcpy(&value, at, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

static bool right = true;

static void expect(const char* what, unsigned seen, unsigned wanted) {
  if (seen != wanted) std::printf("%s: %u instead of %u\n", what, seen, wanted);
  right &= seen == wanted;
}

int main() {
  cudaStream_t waits, writes;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&waits, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&writes, cudaStreamNonBlocking));
  unsigned *words, *sum;
  CHECK_RUNTIME(cudaMalloc(&words, 4096));
  CHECK_RUNTIME(cudaMalloc(&sum, sizeof *sum));
  CHECK_RUNTIME(cudaMemset(words, 0, 4096));
  CHECK_RUNTIME(cudaMemset(sum, 0, sizeof *sum));
  unsigned* value = words + 64;
  // The driver loads a kernel at its first launch, and waits for all streams then, so no stream may be blocked.
  store<<<1, 1>>>(value, 0);
  add<<<1, 1>>>(sum, value);
  CHECK_RUNTIME(cudaDeviceSynchronize());

  // One stream waits until the other writes; the other's earlier writes are visible then.
  CHECK_DRIVER(cuStreamWaitValue32(waits, address(words), 1, CU_STREAM_WAIT_VALUE_GEQ));
  add<<<1, 1, 0, waits>>>(sum, value);
  store<<<1, 1, 0, writes>>>(value, 5);
  CHECK_DRIVER(cuStreamWriteValue32(writes, address(words), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  expect("a word that another stream writes", read(sum), 5);

  // A kernel's write ends a wait, too, with every comparison.
  CHECK_DRIVER(cuStreamWaitValue32(waits, address(words + 1), 7, CU_STREAM_WAIT_VALUE_EQ));
  CHECK_DRIVER(cuStreamWaitValue32(waits, address(words + 1), 2, CU_STREAM_WAIT_VALUE_AND));
  CHECK_DRIVER(cuStreamWaitValue32(waits, address(words + 1), 7, CU_STREAM_WAIT_VALUE_NOR));
  // Cyclic: 7 comes after a number that is nearly 2^32.
  CHECK_DRIVER(cuStreamWaitValue32(waits, address(words + 1), 0xfffffff0u, CU_STREAM_WAIT_VALUE_GEQ));
  add<<<1, 1, 0, waits>>>(sum, value);
  store<<<1, 1, 0, writes>>>(words + 1, 7);
  expect("a word that a kernel writes", read(sum), 10);

  CHECK_DRIVER(cuStreamWaitValue64(waits, address(words + 4), 1ull << 40, CU_STREAM_WAIT_VALUE_GEQ));
  add<<<1, 1, 0, waits>>>(sum, value);
  CHECK_DRIVER(cuStreamWriteValue64(writes, address(words + 4), (1ull << 40) + 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  expect("a word of 64 bits", read(sum), 15);

  // A write and a wait in one call.
  CUstreamBatchMemOpParams batch[2] = {};
  batch[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  batch[0].writeValue.address = address(words + 8);
  batch[0].writeValue.value = 1;
  batch[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  batch[1].waitValue.address = address(words + 9);
  batch[1].waitValue.value = 1;
  CHECK_DRIVER(cuStreamBatchMemOp(waits, 2, batch, 0));
  add<<<1, 1, 0, waits>>>(sum, value);
  CHECK_DRIVER(cuStreamWaitValue32(writes, address(words + 8), 1, CU_STREAM_WAIT_VALUE_GEQ));
  CHECK_DRIVER(cuStreamWriteValue32(writes, address(words + 9), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  expect("a batch", read(sum), 20);

  // In the captured form the word is reset each time.
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaStreamBeginCapture(waits, cudaStreamCaptureModeRelaxed));
  CHECK_DRIVER(cuStreamWaitValue32(waits, address(words + 16), 1, CU_STREAM_WAIT_VALUE_EQ));
  add<<<1, 1, 0, waits>>>(sum, value);
  CHECK_DRIVER(cuStreamWriteValue32(waits, address(words + 16), 0, CU_STREAM_WRITE_VALUE_DEFAULT));
  CHECK_RUNTIME(cudaStreamEndCapture(waits, &graph));
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) {
    CHECK_RUNTIME(cudaGraphLaunch(exec, waits));
    CHECK_DRIVER(cuStreamWriteValue32(writes, address(words + 16), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    expect("a graph", read(sum), unsigned(25 + 5 * i));
  }
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
