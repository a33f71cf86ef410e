// From the handle in a call to the function it means in the current context.
#pragma once

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/driver/call/driver_state.hpp"

namespace gpuwire::software_device {

// Accepts a CUfunction, and a CUkernel in its place, which is instantiated in the context when it is new there.
// CUDA_ERROR_INVALID_HANDLE when it is neither, or a function of another context.
tl::expected<std::shared_ptr<Function>, CUresult> find_function(Context& context, CUfunction handle);

// How much dynamic shared memory a launch may ask for.
uint32_t dynamic_shared_bytes_max(const KernelInfo& info, const FunctionSettings& settings);

}  // namespace gpuwire::software_device
