// The kernel's figures about the memory of the machine and of a process.
#pragma once

#include <cstdint>
#include <optional>

#include <sys/types.h>

#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {

// Returns the memory of the machine, or of this process's control group, whichever is less. 0: unknown.
uint64_t machine_bytes();

// Returns the memory of the machine that programs may take without swapping. 0: unknown.
uint64_t available_bytes();

// The kernel's figures about a process, read repeatedly over one descriptor: opening the file again costs more than
// reading it. The descriptor refers to this process, even if a later process gets its number.
class ProcessStatus {
 public:
  struct Figures {
    // The memory that the end of the process would free: its anonymous and shared memory and the swapped part of it,
    // without mapped files.
    uint64_t own_bytes = 0;
    uint64_t threads = 0;
  };
  explicit ProcessStatus(pid_t process);
  // None: it is gone.
  std::optional<Figures> read() const;

 private:
  OwnedDescriptor file_;
};

// Returns Figures::own_bytes once. None: the process has ended.
std::optional<uint64_t> own_bytes(pid_t process);

// Returns the size of a process's private writable mappings, as RLIMIT_DATA counts them. 0: unknown.
uint64_t data_bytes();

// The scores of a worker without a session, and of the broker.
inline constexpr int kKillOrderOfWorkers = 200, kKillOrderOfBroker = -500;

// Applies to all present threads of the process and to the threads that they start. Only root may set a value below the
// present one.
void set_niceness(pid_t process, int niceness);

// Sets how early the kernel kills the process when memory runs out: 0 to 1000. False: no permission, or the process has
// ended.
bool set_kill_order(pid_t process, int order);

}  // namespace gpuwire::server
