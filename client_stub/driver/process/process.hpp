// The object of a process that uses CUDA. The first successful cuInit makes it (lifecycle.hpp). It is never destroyed,
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
  // Owned by the session.
  const DeviceFacts* facts = nullptr;
  // Its handle never changes: cudart asks for it before it retains.
  ContextState* primary = nullptr;
};

struct Process {
  // The only server of the process. Never destroyed, like the process object; tests destroy both by
  // uninstall_process_for_test().
  ServerSession* server = nullptr;
  // The server's.
  Session* connection = nullptr;
  // By the program's ordinal; does not change.
  std::vector<Device> devices;
  // CUDA_MODULE_LOADING=EAGER at the time of cuInit; does not change.
  bool loads_eagerly = false;
  // Contexts and streams, for cuCtxGetId and cuStreamGetId.
  std::atomic<uint64_t> next_id{1};
  // A primary context was reset after a kernel's fault. Like NVIDIA's driver, the process then makes no new one on any
  // device. A flag alone: nothing is published through it.
  std::atomic<bool> lost{false};

  const Device* device(CUdevice ordinal) const noexcept {
    return ordinal >= 0 && size_t(ordinal) < devices.size() ? &devices[size_t(ordinal)] : nullptr;
  }
};

// Null before cuInit has succeeded, in a forked child, and after the program's exit; absent_process() returns the
// reason.
extern std::atomic<Process*> g_process;
inline Process* process() noexcept { return g_process.load(std::memory_order_acquire); }
// CUDA_ERROR_NOT_INITIALIZED or CUDA_ERROR_DEINITIALIZED.
CUresult absent_process() noexcept;

// Publishes the complete object. `process` lives until the process ends.
void publish_process(Process& process) noexcept;
// Calls no longer find the object; absent_process() returns `why` from here on.
void withdraw_process(CUresult why) noexcept;

}  // namespace gpuwire::client
