// After a kernel's fault the host functions behind it are skipped and the stream callbacks behind it get the error;
// later ones are refused. usage: callbacks_fault [lost]: the same when the device is lost, which the suite causes once
// "waiting" is printed.
#include <cuda.h>
#include <cuda_runtime.h>

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "../../../../examples/check.hpp"

__global__ void store(unsigned* at, unsigned value) { *at = value; }

static std::mutex mutex;
static std::condition_variable changed;
static bool host_function_ran = false;
static int told = -1;

static void CUDART_CB host_function(void*) {
  std::lock_guard lock(mutex);
  host_function_ran = true;
}

static void CUDART_CB stream_callback(cudaStream_t, cudaError_t status, void*) {
  std::lock_guard lock(mutex);
  told = status;
  changed.notify_all();
}

// Waits for the callback's status.
static int await_told() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [] { return told != -1; });  // the suite ends a program that hangs
  return told;
}

static int lose() {
  unsigned* word;
  CHECK_RUNTIME(cudaMalloc(&word, sizeof *word));
  CHECK_RUNTIME(cudaMemset(word, 0, sizeof *word));
  CHECK_DRIVER(cuStreamWaitValue32(nullptr, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
  CHECK_RUNTIME(cudaLaunchHostFunc(nullptr, host_function, nullptr));
  CHECK_RUNTIME(cudaStreamAddCallback(nullptr, stream_callback, nullptr, 0));
  std::printf("waiting\n");
  std::fflush(stdout);
  int status = await_told();
  int later = cudaStreamAddCallback(nullptr, stream_callback, nullptr, 0);
  std::printf("told %d, host function %s, later %d\n", status, host_function_ran ? "ran" : "left out", later);
  return status != cudaSuccess && !host_function_ran && later == status ? 0 : 1;
}

// Some calls check their arguments before the context's state (as measured on driver 580).
static bool arguments_come_first(CUstream stream) {
  const char* name;
  CUarray array;
  return cuFuncGetName(&name, nullptr) == CUDA_ERROR_INVALID_VALUE &&
         cuArrayGetPlane(&array, nullptr, 1) == CUDA_ERROR_INVALID_HANDLE &&
         cuMipmappedArrayGetLevel(&array, nullptr, 0) == CUDA_ERROR_INVALID_HANDLE &&
         cuStreamGetFlags(stream, nullptr) == CUDA_ERROR_INVALID_VALUE;
}

int main(int count, char** arguments) {
  if (count > 1 && std::strcmp(arguments[1], "lost") == 0) return lose();
  cudaStream_t faulty, other;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&faulty, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  unsigned* word;
  CHECK_RUNTIME(cudaMalloc(&word, sizeof *word));
  store<<<1, 1>>>(word, 0);
  CHECK_RUNTIME(cudaDeviceSynchronize());

  // The stream is blocked until all work is queued behind the kernel.
  CHECK_DRIVER(cuStreamWaitValue32(faulty, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
  store<<<1, 1, 0, faulty>>>(nullptr, 1);
  CHECK_RUNTIME(cudaLaunchHostFunc(faulty, host_function, nullptr));
  CHECK_RUNTIME(cudaStreamAddCallback(faulty, stream_callback, nullptr, 0));
  store<<<1, 1, 0, other>>>(word, 1);
  cudaError_t synchronised = cudaStreamSynchronize(faulty);
  await_told();
  cudaError_t late_function = cudaLaunchHostFunc(faulty, host_function, nullptr);
  cudaError_t late_callback = cudaStreamAddCallback(faulty, stream_callback, nullptr, 0);
  std::printf("synchronised %d, told %d, host function %s, later %d %d\n", synchronised, told,
              host_function_ran ? "ran" : "left out", late_function, late_callback);
  bool right = arguments_come_first(faulty) && synchronised == cudaErrorIllegalAddress &&
               told == cudaErrorIllegalAddress && !host_function_ran && late_function == cudaErrorIllegalAddress &&
               late_callback == cudaErrorIllegalAddress;
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
