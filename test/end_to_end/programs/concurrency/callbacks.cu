// Host functions and stream callbacks run on the client, in the order of the stream, between the kernels before and
// after them.
#include <cuda_runtime.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "../../../../examples/check.hpp"

__global__ void append(int* data, int* length, int value) { data[(*length)++] = value; }

static std::vector<int> order;
static std::thread::id main_thread;
static bool other_thread = true;

static void CUDART_CB host_function(void* user) {
  other_thread &= std::this_thread::get_id() != main_thread;
  order.push_back(int(reinterpret_cast<intptr_t>(user)));
}

static void CUDART_CB stream_callback(cudaStream_t, cudaError_t status, void* user) {
  order.push_back(status == cudaSuccess ? int(reinterpret_cast<intptr_t>(user)) : -1);
}

int main() {
  main_thread = std::this_thread::get_id();
  int *data, *length;
  CHECK_RUNTIME(cudaMalloc(&data, 64 * sizeof(int)));
  CHECK_RUNTIME(cudaMalloc(&length, sizeof(int)));
  CHECK_RUNTIME(cudaMemset(length, 0, sizeof(int)));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int i = 0; i < 10; ++i) {
    append<<<1, 1, 0, stream>>>(data, length, i);
    CHECK_RUNTIME(cudaGetLastError());
    if (i % 2 == 0) CHECK_RUNTIME(cudaLaunchHostFunc(stream, host_function, reinterpret_cast<void*>(intptr_t(i))));
    else CHECK_RUNTIME(cudaStreamAddCallback(stream, stream_callback, reinterpret_cast<void*>(intptr_t(i)), 0));
  }
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  bool right = order.size() == 10 && other_thread;
  for (size_t i = 0; i < order.size(); ++i) right &= order[i] == int(i);
  int host[10];
  CHECK_RUNTIME(cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 10; ++i) right &= host[i] == i;
  std::printf("%zu callbacks, %s\n%s\n", order.size(),
              other_thread ? "on another thread" : "on the program's own thread", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
