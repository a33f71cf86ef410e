// The launch interface of CUDA 3: block, shared memory and parameters are set on a function one by one, and a launch
// takes what was set last.
#include <cuda.h>

#include <cstring>

#include "../driver_check.hpp"

namespace {

const char* const kModule = R"(
.version 6.0
.target sm_50
.address_size 64
.extern .shared .align 4 .b8 words[];
// values[block * threads + thread] = number + scale, by way of shared memory
.visible .entry set(.param .u64 values, .param .u32 number, .param .f32 scale) {
  .reg .b32 %r<10>; .reg .b64 %d<4>; .reg .f32 %f<2>;
  ld.param.u64 %d1, [values];
  ld.param.u32 %r1, [number];
  ld.param.f32 %f1, [scale];
  cvt.rzi.s32.f32 %r2, %f1;
  add.s32 %r3, %r1, %r2;
  mov.u32 %r4, %tid.x;
  mov.u32 %r5, words;
  mad.lo.s32 %r5, %r4, 4, %r5;
  st.shared.u32 [%r5], %r3;
  ld.shared.u32 %r3, [%r5];
  mov.u32 %r6, %ctaid.x; mov.u32 %r7, %ntid.x;
  mov.u32 %r8, %ctaid.y; mov.u32 %r9, %nctaid.x;
  mad.lo.s32 %r6, %r8, %r9, %r6;
  mad.lo.s32 %r6, %r6, %r7, %r4;
  mul.wide.u32 %d2, %r6, 4;
  add.s64 %d3, %d1, %d2;
  st.global.u32 [%d3], %r3;
  ret;
}
.visible .entry plain() { ret; }
)";
constexpr int kThreads = 64, kWidth = 2, kHeight = 3, kCount = kThreads * kWidth * kHeight;

// How many of the values are `wanted`, from the first on.
int alike(CUdeviceptr memory, int wanted) {
  static int values[kCount];
  OK(cuMemcpyDtoH(values, memory, sizeof values));
  int count = 0;
  while (count < kCount && values[count] == wanted) ++count;
  return count;
}

// CUDA's documents do not define these answers; on a GPU they are compared with NVIDIA's driver's. The lines before a
// crashing call are printed.
void tell(CUresult result) {
  DEMAND(result != CUDA_ERROR_NOT_SUPPORTED);
  std::printf("%s\n", error_name(result));
  std::fflush(stdout);
}

void wrong_arguments(CUfunction function, CUfunction untouched) {
  tell(cuLaunch(untouched));  // of which nothing is set: one thread
  tell(cuFuncSetBlockShape(nullptr, 1, 1, 1));
  tell(cuFuncSetBlockShape(function, 0, 1, 1));
  tell(cuParamSetSize(function, 1 << 20));
  tell(cuLaunchGrid(function, 0, 1));
}

// NVIDIA's driver 580 writes to an offset below 0, and crashes; how far above the parameters it writes is not known.
void wrong_offsets(CUfunction function) {
  int value = 1;
  tell(cuParamSetv(function, -4, &value, 4));
  tell(cuParamSetv(function, 4094, &value, 4));
  tell(cuParamSeti(function, -4, 1));
  tell(cuParamSetf(function, -4, 1));
}

}  // namespace

// "offsets": also makes the calls that crash NVIDIA's driver.
int main(int argc, char** argv) {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction set, plain;
  CUdeviceptr memory;
  CUstream stream;
  OK(cuInit(0));
  OK(cuDeviceGet(&device, 0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  OK(cuModuleLoadData(&module, kModule));
  OK(cuModuleGetFunction(&set, module, "set"));
  OK(cuModuleGetFunction(&plain, module, "plain"));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&memory, kCount * sizeof(int)));
  OK(cuMemsetD32(memory, 0, kCount));

  OK(cuFuncSetBlockShape(set, kThreads, 1, 1));
  OK(cuFuncSetSharedSize(set, kThreads * sizeof(int)));
  OK(cuParamSetv(set, 0, &memory, sizeof memory));
  OK(cuParamSeti(set, 8, 40));
  OK(cuParamSetf(set, 12, 2.0f));
  OK(cuParamSetSize(set, 16));
  wrong_arguments(set, plain);
  if (argc > 1 && std::strcmp(argv[1], "offsets") == 0) wrong_offsets(set);
  OK(cuLaunch(set));
  DEMAND(alike(memory, 42) == kThreads);
  OK(cuFuncSetBlockShape(plain, 32, 1, 1));
  OK(cuLaunch(plain));
  OK(cuParamSeti(set, 8, 50));
  OK(cuLaunchGrid(set, kWidth, 1));
  DEMAND(alike(memory, 52) == kThreads * kWidth);
  OK(cuParamSeti(set, 8, 60));
  OK(cuLaunchGridAsync(set, kWidth, kHeight, stream));
  OK(cuStreamSynchronize(stream));
  DEMAND(alike(memory, 62) == kCount);

  OK(cuMemFree(memory));
  OK(cuStreamDestroy(stream));
  OK(cuModuleUnload(module));
  OK(cuDevicePrimaryCtxRelease(device));
  std::printf("PASSED\n");
  return 0;
}
