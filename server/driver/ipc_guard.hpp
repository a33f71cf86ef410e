// CUDA's IPC handles are bytes that any process of the host's user may open. Here a session may open only handles of
// sessions of its own tenant: the broker is told of each handle when the driver returns it, and asked before the driver
// opens it. The answer for any other handle is NVIDIA's driver's answer for an unknown one: memory is
// CUDA_ERROR_INVALID_VALUE, an event CUDA_ERROR_MAP_FAILED (as measured on driver 580).
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

  // Puts it before the IPC functions of the table, whose present ones it calls.
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
