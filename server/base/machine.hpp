// What the kernel says about memory: how much the machine has, and what a process has of it.
#pragma once

#include <cstdint>
#include <optional>

#include <sys/types.h>

namespace gpuwire::server {

// Of the machine, or of the control group that this process is in, whichever is less. 0: nobody tells.
uint64_t machine_bytes();

// What would be free if the process ended: its anonymous and shared memory and what of it is swapped out, without what
// it maps of files. None: it is gone.
std::optional<uint64_t> own_bytes(pid_t process);

// Of the process. None: it is gone.
std::optional<uint64_t> thread_count(pid_t process);

// What a process may have mapped for writing by itself, as RLIMIT_DATA counts it. 0: nobody tells.
uint64_t data_bytes();

// A worker without a session, and the broker, without which there is none.
inline constexpr int kKillOrderOfWorkers = 200, kKillOrderOfBroker = -500;

// How early the kernel kills the process when memory runs out: 0 to 1000. False: it may not be said, or the process is
// gone.
bool set_kill_order(pid_t process, int order);

}  // namespace gpuwire::server
