// Profiler control: there is nothing to start, and that is no error.
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
