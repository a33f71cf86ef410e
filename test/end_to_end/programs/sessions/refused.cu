// Asks for what the software device lacks and ends at once: the reason is on standard error before the error is known.
// usage: refused HOW
#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <unistd.h>

int main(int count, char** arguments) {
  const char* const how = count > 1 ? arguments[1] : "";
  CUdevice device;
  CUcontext context;
  if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context))
    return 2;
  CUresult result = CUDA_ERROR_UNKNOWN;
  if (!std::strcmp(how, "instruction")) {
    CUmodule module;
    result = cuModuleLoadData(&module,
                              ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { .reg .b32 %r<2>; "
                              "multimem.red.add.u32 [%r0], %r1; ret; }\n");
  } else if (!std::strcmp(how, "function")) {
    CUdeviceptr memory;
    CUipcMemHandle handle;
    if (cuMemAlloc(&memory, 4)) return 2;
    result = cuIpcGetMemHandle(&handle, memory);
  } else if (!std::strcmp(how, "image")) {
    CUmodule module;
    // The head of a cubin.
    alignas(8) static const unsigned char cubin[64] = {0x7f, 'E', 'L', 'F', 2, 1, 1,   0x33, 7, 0, 0, 0,
                                                       0,    0,   0,   0,   2, 0, 190, 0,    1, 0, 0, 0};
    result = cuModuleLoadData(&module, cubin);
  }
  std::printf("%d\n", int(result));
  std::fflush(stdout);
  _exit(0);
}
