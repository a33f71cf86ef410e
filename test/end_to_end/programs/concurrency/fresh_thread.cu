// A thread that has never made a context current looks up a kernel of a library that no one has used yet, as
// frameworks' worker threads do.
#include <cuda.h>

#include <cstdio>
#include <thread>

#include "../../../../examples/check.hpp"

static const char* kLibrary =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry answer(.param .u64 out) {\n"
    ".reg .b64 %rd<3>;\n.reg .b32 %r<2>;\n"
    "ld.param.u64 %rd1, [out];\ncvta.to.global.u64 %rd2, %rd1;\nmov.u32 %r1, 42;\nst.global.u32 [%rd2], "
    "%r1;\nret;\n}\n";

int main() {
  CHECK_DRIVER(cuInit(0));
  CUcontext context;
  CHECK_DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK_DRIVER(cuCtxSetCurrent(context));
  CUdeviceptr out;
  CHECK_DRIVER(cuMemAlloc(&out, sizeof(int)));
  CHECK_DRIVER(cuCtxSynchronize());
  CUlibrary library;
  CUkernel kernel = nullptr;
  CUresult found = CUDA_ERROR_UNKNOWN;
  std::thread([&] {
    CUcontext none;
    CHECK_DRIVER(cuCtxGetCurrent(&none));
    if (none) return;
    CHECK_DRIVER(cuLibraryLoadData(&library, kLibrary, nullptr, nullptr, 0, nullptr, nullptr, 0));
    found = cuLibraryGetKernel(&kernel, library, "answer");
  }).join();
  std::printf("cuLibraryGetKernel without a current context: %d\n", found);
  if (found != CUDA_SUCCESS) return 1;
  int value = 0;
  void* parameters[] = {&out};
  CHECK_DRIVER(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  CHECK_DRIVER(cuMemcpyDtoH(&value, out, sizeof value));
  std::printf("%s\n", value == 42 ? "PASSED" : "FAILED");
  return value == 42 ? 0 : 1;
}
