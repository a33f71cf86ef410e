// The launch interface of CUDA 3, which cuda.h still declares and PyCUDA still calls: block, shared memory and
// parameters are set on a function one by one, and a launch uses these settings.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "client/custom.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/module/module_state.hpp"

namespace gpuwire::client::hand {
namespace {

// The maximum of a launch's parameters in CUDA 3 ("CUDA C Programming Guide", kernel parameters).
constexpr size_t kStagedParameterBytesMax = 4096;

// Runs set(StagedLaunch&) on the settings of a function. Lock: the function's mutex is held during the call.
template <class Set>
CUresult stage(CUfunction handle, Set&& set) {
  FunctionState* function = find_launchable(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(function->mutex);
  if (!function->staged) function->staged = std::make_unique<StagedLaunch>();
  return set(*function->staged);
}

CUresult set_parameter(CUfunction function, int offset, const void* value, size_t bytes) {
  if (offset < 0 || !value || bytes > kStagedParameterBytesMax || size_t(offset) > kStagedParameterBytesMax - bytes)
    return CUDA_ERROR_INVALID_VALUE;
  // The value may be in managed memory, which must not be accessed under a lock, so it is copied first.
  const auto* first = static_cast<const std::byte*>(value);
  const std::vector<std::byte> parameter(first, first + bytes);
  return stage(function, [&](StagedLaunch& staged) {
    const size_t end = size_t(offset) + bytes;
    if (staged.parameters.size() < end) staged.parameters.resize(end);
    std::copy(parameter.begin(), parameter.end(), staged.parameters.begin() + offset);
    return CUDA_SUCCESS;
  });
}

CUresult launch_staged(const Caller& caller, CUfunction function, int width, int height, CUstream stream) {
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  StagedLaunch launch;
  if (CUresult error = stage(function, [&](StagedLaunch& staged) {
        launch = staged;
        return CUDA_SUCCESS;
      }))
    return error;
  size_t bytes = launch.parameters.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, launch.parameters.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  return hand::cuLaunchKernel(caller, function, unsigned(width), unsigned(height), 1, launch.block[0], launch.block[1],
                              launch.block[2], launch.shared_bytes, stream, nullptr, bytes ? extra : nullptr, false);
}

}  // namespace

CUresult cuFuncSetBlockShape(const Caller&, CUfunction hfunc, int x, int y, int z) {
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  return stage(hfunc, [&](StagedLaunch& staged) {
    staged.block[0] = unsigned(x), staged.block[1] = unsigned(y), staged.block[2] = unsigned(z);
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncSetSharedSize(const Caller&, CUfunction hfunc, unsigned int bytes) {
  return stage(hfunc, [&](StagedLaunch& staged) {
    staged.shared_bytes = bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuParamSetSize(const Caller&, CUfunction hfunc, unsigned int numbytes) {
  if (numbytes > kStagedParameterBytesMax) return CUDA_ERROR_INVALID_VALUE;
  return stage(hfunc, [&](StagedLaunch& staged) {
    staged.parameters.resize(numbytes);
    return CUDA_SUCCESS;
  });
}

CUresult cuParamSeti(const Caller&, CUfunction hfunc, int offset, unsigned int value) {
  return set_parameter(hfunc, offset, &value, sizeof value);
}

CUresult cuParamSetf(const Caller&, CUfunction hfunc, int offset, float value) {
  return set_parameter(hfunc, offset, &value, sizeof value);
}

CUresult cuParamSetv(const Caller&, CUfunction hfunc, int offset, void* ptr, unsigned int numbytes) {
  return set_parameter(hfunc, offset, ptr, numbytes);
}

CUresult cuLaunch(const Caller& caller, CUfunction f) { return launch_staged(caller, f, 1, 1, nullptr); }

CUresult cuLaunchGrid(const Caller& caller, CUfunction f, int grid_width, int grid_height) {
  return launch_staged(caller, f, grid_width, grid_height, nullptr);
}

CUresult cuLaunchGridAsync(const Caller& caller, CUfunction f, int grid_width, int grid_height, CUstream hStream) {
  return launch_staged(caller, f, grid_width, grid_height, hStream);
}

}  // namespace gpuwire::client::hand
