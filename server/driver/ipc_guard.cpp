#include "server/driver/ipc_guard.hpp"

#include <algorithm>
#include <span>

#include <sys/eventfd.h>
#include <unistd.h>

#include "server/base/owned_descriptor.hpp"
#include "server/driver_table.hpp"
#include "server/module_cache/digest.hpp"

namespace gpuwire::server {
namespace {

// The part of a handle that the broker gets: enough to identify the handle, but not to open it.
template <class Handle>
ShareToken token_of(const Handle& handle) {
  Digest digest = sha256(std::as_bytes(std::span(&handle, 1)));
  ShareToken token;
  auto bytes = std::as_bytes(std::span(digest));
  std::transform(bytes.begin(), bytes.begin() + token.size(), token.begin(), [](std::byte b) { return uint8_t(b); });
  return token;
}

}  // namespace

IpcGuard* IpcGuard::here_ = nullptr;

IpcGuard::~IpcGuard() {
  if (here_ == this) here_ = nullptr;
}

template <class Handle>
CUresult IpcGuard::made(const Handle& handle, ShareKind kind) {
  ShareToken token = token_of(handle);
  if (!known_.insert(token).second) return CUDA_SUCCESS;
  // The broker stores descriptors. Any descriptor is sufficient here, because only the token matters.
  OwnedDescriptor nothing(::eventfd(0, EFD_CLOEXEC));
  if (nothing && shares_.publish(token, kind, tenant_, nothing.get())) return CUDA_SUCCESS;
  known_.erase(token);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

template <class Handle>
bool IpcGuard::may_open(const Handle& handle, ShareKind kind) {
  return bool(OwnedDescriptor(shares_.claim(token_of(handle), kind, tenant_)));
}

void IpcGuard::put_before(DriverTable& table) {
  here_ = this;
  get_memory_ = table.cuIpcGetMemHandle;
  open_memory_ = table.cuIpcOpenMemHandle_v2;
  get_event_ = table.cuIpcGetEventHandle;
  open_event_ = table.cuIpcOpenEventHandle;
  if (get_memory_)
    table.cuIpcGetMemHandle = [](CUipcMemHandle* handle, CUdeviceptr address) {
      CUresult result = here_->get_memory_(handle, address);
      return result == CUDA_SUCCESS ? here_->made(*handle, ShareKind::ipc_memory) : result;
    };
  if (open_memory_)
    table.cuIpcOpenMemHandle_v2 = [](CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
      return here_->may_open(handle, ShareKind::ipc_memory) ? here_->open_memory_(address, handle, flags)
                                                            : CUDA_ERROR_INVALID_VALUE;
    };
  if (get_event_)
    table.cuIpcGetEventHandle = [](CUipcEventHandle* handle, CUevent event) {
      CUresult result = here_->get_event_(handle, event);
      return result == CUDA_SUCCESS ? here_->made(*handle, ShareKind::ipc_event) : result;
    };
  if (open_event_)
    table.cuIpcOpenEventHandle = [](CUevent* event, CUipcEventHandle handle) {
      return here_->may_open(handle, ShareKind::ipc_event) ? here_->open_event_(event, handle) : CUDA_ERROR_MAP_FAILED;
    };
}

}  // namespace gpuwire::server
