// The common part of programs with the driver API.
#pragma once

#include <cuda.h>

#include <cstdio>
#include <cstdlib>

inline const char* error_name(CUresult error) {
  const char* name = "?";
  cuGetErrorName(error, &name);
  return name;
}

// Ends the process: these programs are right from the first call to the last or they have failed.
#define OK(call)                                                             \
  do {                                                                       \
    CUresult error_ = (call);                                                \
    if (error_ != CUDA_SUCCESS) {                                            \
      std::printf("line %d: %s: %s\n", __LINE__, #call, error_name(error_)); \
      std::exit(1);                                                          \
    }                                                                        \
  } while (0)

#define FAILS(call, expected)                                                                                    \
  do {                                                                                                           \
    CUresult error_ = (call);                                                                                    \
    if (error_ != (expected)) {                                                                                  \
      std::printf("line %d: %s: %s instead of %s\n", __LINE__, #call, error_name(error_), error_name(expected)); \
      std::exit(1);                                                                                              \
    }                                                                                                            \
  } while (0)

#define DEMAND(condition)                                         \
  do {                                                            \
    if (!(condition)) {                                           \
      std::printf("line %d: not so: %s\n", __LINE__, #condition); \
      std::exit(1);                                               \
    }                                                             \
  } while (0)

inline CUdevice retain_primary() {
  CUdevice device;
  CUcontext context;
  OK(cuInit(0));
  OK(cuDeviceGet(&device, 0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  return device;
}
