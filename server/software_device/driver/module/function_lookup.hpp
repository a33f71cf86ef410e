// Finds the function that a handle in a call denotes in the current context.
#pragma once

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/driver/call/driver_state.hpp"

namespace gpuwire::software_device {

// Accepts a CUfunction, or a CUkernel in its place, which is instantiated in the context at its first use there.
// Returns CUDA_ERROR_INVALID_HANDLE for anything else, and for a function of another context.
tl::expected<std::shared_ptr<Function>, CUresult> find_function(Context& context, CUfunction handle);

// Returns whether there is such a CUfunction or CUkernel, in whatever context.
bool is_function(CUfunction handle);

// Returns the maximum of dynamic shared memory for a launch.
uint32_t dynamic_shared_bytes_max(const KernelInfo& info, const FunctionSettings& settings);

}  // namespace gpuwire::software_device
