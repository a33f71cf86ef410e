// The primary context of each device: one handle forever, with a context behind it while it is retained.
#include <memory>

#include "server/software_device/driver/call/api.hpp"

using namespace gpuwire::software_device;

namespace {

template <typename Body>
CUresult with_primary(CUdevice ordinal, Body&& body) noexcept {
  return with_driver([&]() -> CUresult {
    Device* const device = driver().device(ordinal);
    if (device == nullptr) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    const std::lock_guard lock(device->primary_mutex);
    return body(*device);
  });
}

void deactivate(Device& device) {
  std::shared_ptr<Context> context;
  {
    const std::lock_guard lock(device.primary->mutex);
    context = std::move(device.primary->context);
  }
  if (context != nullptr) {
    context->shut_down();
  }
}

void activate(Device& device) {
  auto context =
      std::make_shared<Context>(device, device.primary->handle, device.primary_flags, driver().next_context_id());
  const std::lock_guard lock(device.primary->mutex);
  device.primary->context = std::move(context);
}

CUresult set_flags(CUdevice ordinal, unsigned int flags, bool while_active) noexcept {
  return with_primary(ordinal, [&](Device& device) -> CUresult {
    const unsigned scheduling = flags & CU_CTX_SCHED_MASK;
    if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0 || (scheduling & (scheduling - 1)) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto context = device.primary->live();
    if (context != nullptr && !while_active) {
      return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
    }
    device.primary_flags = flags;
    if (context != nullptr) {
      const std::lock_guard lock(context->settings_mutex);
      context->flags = flags;
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice ordinal) {
  return with_primary(ordinal, [&](Device& device) -> CUresult {
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (driver().lost.load(std::memory_order_relaxed)) {
      return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    if (device.primary->live() == nullptr) {
      activate(device);
    }
    ++device.primary_users;
    *out = device.primary->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  return with_primary(ordinal, [](Device& device) -> CUresult {
    if (device.primary_users == 0) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (device.primary_users == device.greens) {
      return CUDA_ERROR_NOT_PERMITTED;  // measured on driver 580, also for a reset
    }
    if (--device.primary_users == 0) {
      deactivate(device);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) { return cuDevicePrimaryCtxRelease_v2(ordinal); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  return with_primary(ordinal, [](Device& device) -> CUresult {
    const std::shared_ptr<Context> context = device.primary->live();
    if (context != nullptr && device.greens != 0) {
      return CUDA_ERROR_NOT_PERMITTED;
    }
    if (context != nullptr && context->fault() != CUDA_SUCCESS) {
      driver().lost.store(true, std::memory_order_relaxed);
    }
    deactivate(device);
    device.primary_users = 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) { return cuDevicePrimaryCtxReset_v2(ordinal); }

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int* flags, int* active) {
  return with_primary(ordinal, [&](Device& device) -> CUresult {
    if (flags == nullptr || active == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = device.primary_flags;
    *active = device.primary->live() != nullptr ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags) { return set_flags(ordinal, flags, true); }

// The function of CUDA before 11 refuses to change the flags of an active context (measured on driver 580).
CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags) { return set_flags(ordinal, flags, false); }
