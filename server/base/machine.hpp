// The kernel's figures about memory: the machine's, and a process's.
#pragma once

#include <cstdint>
#include <optional>

#include <sys/types.h>

#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {

// Returns the memory of the machine, or of this process's control group, whichever is less. 0: unknown.
uint64_t machine_bytes();

// The kernel's figures about a process, read repeatedly over one descriptor: opening the file anew costs more than
// reading it. The descriptor means this process, also when another one has its number.
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

// Figures::own_bytes of one look. None: it is gone.
std::optional<uint64_t> own_bytes(pid_t process);

// The private writable mappings of a process, as RLIMIT_DATA counts them. 0: unknown.
uint64_t data_bytes();

// A worker without a session, and the broker, without which there is none.
inline constexpr int kKillOrderOfWorkers = 200, kKillOrderOfBroker = -500;

// For all present threads of the process; threads that they start have the same. Only root may set values below its
// present one.
void set_niceness(pid_t process, int niceness);

// Sets how early the kernel kills the process when memory runs out: 0 to 1000. False: no permission, or the process has
// ended.
bool set_kill_order(pid_t process, int order);

}  // namespace gpuwire::server
