// CUDA's IPC handles are bytes that any process of the host's user may open. Here a session may open only handles of
// sessions of its own tenant: the guard reports each handle to the broker when the driver returns it, and asks the
// broker before the driver opens a handle. For any other handle the call returns the same error as NVIDIA's driver for
// an unknown handle: memory is CUDA_ERROR_INVALID_VALUE, an event CUDA_ERROR_MAP_FAILED (as measured on driver 580).
#pragma once

#include <cuda.h>

#include <set>
#include <string>

#include "server/replay/memory/shares.hpp"

namespace gpuwire::server {

struct DriverTable;

// At most one in a process: the driver's table has no room for a pointer to it. The executor's thread only.
class IpcGuard {
 public:
  // `shares` outlives it.
  explicit IpcGuard(ShareExchange& shares) : shares_(shares) {}
  ~IpcGuard();
  IpcGuard(const IpcGuard&) = delete;
  IpcGuard& operator=(const IpcGuard&) = delete;

  // Replaces the IPC functions of the table by functions that check and then call the present ones.
  void put_before(DriverTable& table);
  void belongs_to(std::string tenant) { tenant_ = std::move(tenant); }

 private:
  template <class Handle>
  CUresult made(const Handle& handle, ShareKind kind);
  template <class Handle>
  bool may_open(const Handle& handle, ShareKind kind);

  static IpcGuard* here_;
  ShareExchange& shares_;
  std::string tenant_;
  std::set<ShareToken> known_;  // to the broker
  CUresult (*get_memory_)(CUipcMemHandle*, CUdeviceptr) = nullptr;
  CUresult (*open_memory_)(CUdeviceptr*, CUipcMemHandle, unsigned) = nullptr;
  CUresult (*get_event_)(CUipcEventHandle*, CUevent) = nullptr;
  CUresult (*open_event_)(CUevent*, CUipcEventHandle) = nullptr;
};

}  // namespace gpuwire::server
