// Profiler control: this device has no profiler to start, so the calls succeed without effect.
#include <cuda.h>

#include "server/software_device/driver/call/api.hpp"

using namespace gpuwire::software_device;

extern "C" {

CUresult cuProfilerStart() {
  return with_context([](Context&) { return CUDA_SUCCESS; });
}

CUresult cuProfilerStop() {
  return with_context([](Context&) { return CUDA_SUCCESS; });
}

}  // extern "C"
