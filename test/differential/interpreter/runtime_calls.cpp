// The runtime's functions that sequences call. The runtime is linked statically, as by nvcc, and finds libcuda.so.1 by
// itself.
#include <cuda_runtime_api.h>

#include <unordered_map>

#include "calls.hpp"

namespace differential {
namespace {

using Call = cudaError_t (*)(const std::vector<Argument>& arguments);

#define CALL(function)                                                                                             \
  {                                                                                                                \
#function, [](const std::vector <Argument>& arguments) -> cudaError_t { return invoke(&function, arguments); } \
  }
// cuda_runtime_api.h overloads it in C++.
cudaError_t instantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}

const std::unordered_map<std::string_view, Call>& calls() {
  static const std::unordered_map<std::string_view, Call> all = {
      CALL(cudaDeviceSynchronize),
      CALL(cudaDeviceReset),
      CALL(cudaGetDevice),
      CALL(cudaSetDevice),
      CALL(cudaGetDeviceCount),
      CALL(cudaGetLastError),
      CALL(cudaPeekAtLastError),
      CALL(cudaDeviceGetAttribute),
      CALL(cudaDeviceCanAccessPeer),
      CALL(cudaMalloc),
      CALL(cudaFree),
      CALL(cudaMallocHost),
      CALL(cudaFreeHost),
      CALL(cudaHostAlloc),
      CALL(cudaHostRegister),
      CALL(cudaHostUnregister),
      CALL(cudaMallocManaged),
      CALL(cudaMallocAsync),
      CALL(cudaFreeAsync),
      CALL(cudaMemcpy),
      CALL(cudaMemcpyAsync),
      CALL(cudaMemset),
      CALL(cudaMemsetAsync),
      CALL(cudaMemcpy2D),
      CALL(cudaPointerGetAttributes),
      CALL(cudaStreamCreate),
      CALL(cudaStreamCreateWithFlags),
      CALL(cudaStreamDestroy),
      CALL(cudaStreamSynchronize),
      CALL(cudaStreamWaitEvent),
      CALL(cudaStreamBeginCapture),
      CALL(cudaStreamEndCapture),
      CALL(cudaStreamIsCapturing),
      CALL(cudaEventCreate),
      CALL(cudaEventCreateWithFlags),
      CALL(cudaEventDestroy),
      CALL(cudaEventRecord),
      CALL(cudaEventSynchronize),
      CALL(cudaGraphCreate),
      CALL(cudaGraphDestroy),
      CALL(cudaGraphAddEmptyNode),
      CALL(cudaGraphLaunch),
      CALL(cudaGraphExecDestroy),
      CALL(cudaLaunchHostFunc),
      {"cudaGraphInstantiate", [](const std::vector<Argument>& arguments) { return invoke(&instantiate, arguments); }},
  };
  return all;
}

}  // namespace

bool make_runtime_call(std::string_view name, const std::vector<Argument>& arguments, Outcome& outcome) {
  auto found = calls().find(name);
  if (found == calls().end()) return false;
  cudaError_t result = found->second(arguments);
  outcome = {result == cudaSuccess, cudaGetErrorName(result)};
  return true;
}

}  // namespace differential
