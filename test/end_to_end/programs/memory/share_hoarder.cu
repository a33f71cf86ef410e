// Shares memory as often as the server allows, prints the number, and holds the shares until its standard input closes.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "../driver_check.hpp"

// ATTEMPTS
int main(int argc, char** argv) {
  const int attempts = argc > 1 ? std::atoi(argv[1]) : 1000;
  CUdevice device;
  CUcontext context;
  OK(cuInit(0));
  OK(cuDeviceGet(&device, 0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle;
  OK(cuMemCreate(&handle, 2 << 20, &wanted, 0));
  int shared = 0;
  for (int i = 0; i < attempts; ++i) {
    int descriptor = -1;
    if (cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS)
      break;
    ++shared;  // the descriptor stays open: closing it takes the share back
  }
  std::printf("shared %d\n", shared);
  std::fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {}
  return 0;
}
