// Another process waits for an event of this one, and both use shared memory.
#include <cuda_runtime.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "../driver_check.hpp"
#include "../two_processes.hpp"

__global__ void fill(int* data, int count, int value, long long cycles) {
  long long begin = clock64();
  while (clock64() - begin < cycles) {}
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = value;
}

namespace {

constexpr int kCount = 50000;

struct Shared {
  CUipcMemHandle memory;
  CUipcEventHandle event;
};

int other(int socket) {
  retain_primary();
  Shared shared;
  DEMAND(recv(socket, &shared, sizeof shared, MSG_WAITALL) == sizeof shared);
  CUdeviceptr memory;
  CUevent event;
  CUstream stream;
  OK(cuIpcOpenMemHandle(&memory, shared.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuIpcOpenEventHandle(&event, shared.event));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int round = 1; round <= 3; ++round) {
    hear(socket);  // the event has been recorded behind the kernel
    OK(cuStreamWaitEvent(stream, event, 0));
    std::vector<int> values(kCount);
    OK(cuMemcpyDtoHAsync(values.data(), memory, kCount * 4, stream));
    OK(cuStreamSynchronize(stream));
    for (int value : values) DEMAND(value == round);
    OK(cuEventQuery(event));
    say(socket);
  }
  OK(cuStreamDestroy(stream));
  OK(cuEventDestroy(event));
  OK(cuIpcCloseMemHandle(memory));
  say(socket);
  return 0;
}

void one(int socket) {
  retain_primary();
  CUdeviceptr memory;
  CUevent event, plain;
  CUstream stream;
  Shared shared;
  OK(cuMemAlloc(&memory, kCount * 4));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  FAILS(cuEventCreate(&plain, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
  OK(cuIpcGetMemHandle(&shared.memory, memory));
  OK(cuIpcGetEventHandle(&shared.event, event));
  DEMAND(send(socket, &shared, sizeof shared, 0) == sizeof shared);
  for (int round = 1; round <= 3; ++round) {
    fill<<<400, 128, 0, stream>>>(reinterpret_cast<int*>(memory), kCount, round, 1000000);
    OK(cuEventRecord(event, stream));
    say(socket);
    hear(socket);
  }
  OK(cuStreamSynchronize(stream));
  hear(socket);  // the other process has closed these objects
  OK(cuMemFree(memory));
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(stream));
}

}  // namespace

int main() { return in_two_processes(other, one); }
