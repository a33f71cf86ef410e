// The one object of a process that uses CUDA: made by the first successful cuInit (lifecycle.hpp), never destroyed,
// because programs call the driver from their last exit handlers.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "client_stub/session/session.hpp"

namespace gpuwire::client {

struct ContextState;
class ServerSession;

// A device that the program sees.
struct Device {
  int server_ordinal = 0;
  const DeviceFacts* facts = nullptr;  // owned by the session
  ContextState* primary = nullptr;     // its handle is fixed from the start: cudart asks for it before it retains
};

struct Process {
  // The one server that the process has; later, it may be several, each device's its own. Never destroyed, as the
  // process object itself; in tests both are, by uninstall_process_for_test().
  ServerSession* server = nullptr;
  Session* connection = nullptr;     // the server's
  std::vector<Device> devices;       // by the program's ordinal; does not change
  bool loads_eagerly = false;        // CUDA_MODULE_LOADING=EAGER, as it was at cuInit; does not change
  std::atomic<uint64_t> next_id{1};  // contexts and streams, for cuCtxGetId and cuStreamGetId
  // A primary context was reset after a kernel's fault: like NVIDIA's driver, the process takes no new one on any
  // device. A flag alone: nothing is published through it.
  std::atomic<bool> lost{false};

  const Device* device(CUdevice ordinal) const noexcept {
    return ordinal >= 0 && size_t(ordinal) < devices.size() ? &devices[size_t(ordinal)] : nullptr;
  }
};

// Null before cuInit has succeeded, in a forked child, and when the program is past its exit; absent_process() says
// which.
extern std::atomic<Process*> g_process;
inline Process* process() noexcept { return g_process.load(std::memory_order_acquire); }
// CUDA_ERROR_NOT_INITIALIZED or CUDA_ERROR_DEINITIALIZED.
CUresult absent_process() noexcept;

// The object is complete, and calls find it from here on. `process` lives until the process ends.
void publish_process(Process& process) noexcept;
// Calls do not find it any more; absent_process() is `why` from here on.
void withdraw_process(CUresult why) noexcept;

}  // namespace gpuwire::client
