// The one object of a process that uses CUDA: made by the first successful cuInit, never destroyed, because programs
// call the driver from their last exit handlers.
#pragma once

#include <cuda.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client_stub/driver/context/context.hpp"
#include "client_stub/driver/handle/handle_table.hpp"
#include "client_stub/driver/stream/stream.hpp"
#include "client_stub/session/session.hpp"

namespace gpuwire::client {

class ServerSession;

inline constexpr int kDriverVersionMax = 13000;  // of the API that the stub knows, as cuDriverGetVersion says it

// A device that the program sees.
struct Device {
  int server_ordinal = 0;
  const DeviceFacts* facts = nullptr;  // owned by the session
  ContextState* primary = nullptr;     // its handle is fixed from the start: cudart asks for it before it retains
};

struct Process {
  Process();
  ~Process();

  // The one server that the process has; later, it may be several, each device's its own.
  std::unique_ptr<ServerSession> server;
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

// cuInit without its argument check.
CUresult initialise_process() noexcept;

// What cuDriverGetVersion says: the server's driver, or the stub if that is older. The first question connects, for the
// cuInit that follows, and leaves the process uninitialised: a child of fork() may still begin its own. With no server
// in reach it is the stub's.
int driver_version() noexcept;
// The server's own, whatever the stub knows. 0: no server has been in reach yet.
int server_driver_version() noexcept;

// A process over a session that is connected: initialise_process(), and the tests. Publishes it.
CUresult install_process(std::unique_ptr<ServerSession> server, const char* visible_devices) noexcept;
CUresult install_process(std::unique_ptr<Session> connection, const char* visible_devices) noexcept;
// Tests only: as if the process had never been initialised.
void uninstall_process_for_test() noexcept;

}  // namespace gpuwire::client
