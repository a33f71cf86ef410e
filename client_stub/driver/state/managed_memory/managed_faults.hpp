// The reaction to an access of the program to inaccessible managed memory: a handler of SIGSEGV passes the address to a
// thread of the client, which fetches the memory, and the program's instruction is repeated. All other faults are left
// to the program's handler or the system.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

class ManagedMemory;

// One object for the process, as there is one signal handler; it has the managed memory of each session. Any thread.
// The thread that serves faults also calls ManagedMemory::refresh() while there is need.
class ManagedFaults {
 public:
  // Begins to serve faults in this memory; the first call installs the handler and starts the thread. Returns false if
  // the system gives no thread.
  bool start(ManagedMemory& memory) noexcept;
  // Removes memory without watched ranges. When the function returns, the thread does not use the memory any more.
  // Tests only.
  void leave(ManagedMemory& memory) noexcept;
  // Returns the memory that holds the address, or null. Takes no lock if nothing is watched.
  ManagedMemory* holder(uint64_t address) noexcept;
  // Changes the number of sessions with managed memory, and notes in g_entry whether there are any.
  void count_memories(int change) noexcept;

  // Ends the thread at the end of the process, when all managed memory has been opened. Later faults are the program's
  // own.
  void stop() noexcept;
  void after_fork_in_child() noexcept WITHOUT_LOCK_CHECK;

  // Begin and end the watch of [begin, end), whose faults this object serves.
  void watch(uint64_t begin, uint64_t end) noexcept;
  void unwatch(uint64_t begin, uint64_t end) noexcept;
  // Returns whether `address` may be in a watched range. Takes no lock.
  bool may_watch(uint64_t address) const noexcept;

  // Installs the handler again in front of one that the program has installed later; foreign faults are left to that
  // one.
  void stay_in_front() noexcept;
  // Wakes the thread, because there is memory to refresh.
  void wake() noexcept;

 private:
  void serve() noexcept;
  bool bring(uint64_t address, bool write) noexcept;
  bool refresh(bool now) noexcept;

  std::thread thread_;
  // Lock: g_installing.
  bool started_ = false;
  // Held by the serving thread while it uses a memory of the list; outside all locks that it then takes.
  Mutex serving_;
  // Outside ManagedMemory's own locks, and inside serving_.
  Mutex memories_mutex_;
  std::vector<ManagedMemory*> memories_ GUARDED_BY(memories_mutex_);
  // A leaf.
  Mutex counting_;
  int counted_ GUARDED_BY(counting_) = 0;
};

ManagedFaults& managed_faults() noexcept;

}  // namespace gpuwire::client
