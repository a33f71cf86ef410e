// The reaction to an access of the program to inaccessible managed memory: a handler of SIGSEGV passes the address to a
// thread of ours, which fetches the memory, and the program's instruction is repeated. Any other fault goes where it
// would go without us.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

class ManagedMemory;

// One for the process, as the signal is; knows the managed memory of each session. Any thread. The thread that serves
// faults also calls ManagedMemory::refresh() while there is need.
class ManagedFaults {
 public:
  // Faults in this memory are served from here on: installs the handler and starts the thread, once. False: the system
  // gives no thread.
  bool start(ManagedMemory& memory) noexcept;
  // The memory goes, and has no range that is watched. When it returns, the thread does not use it any more. Tests
  // only.
  void leave(ManagedMemory& memory) noexcept;
  // The memory that holds the address; null: none. Costs no lock where nothing is watched.
  ManagedMemory* holder(uint64_t address) noexcept;
  // How many sessions have managed memory, by one more or less: notes in g_entry whether any has.
  void count_memories(int change) noexcept;

  // Ends the thread, at the end of the process, when all managed memory has been opened: faults are then the program's
  // own, but for those that came before.
  void stop() noexcept;
  void after_fork_in_child() noexcept WITHOUT_LOCK_CHECK;

  // Faults in [begin, end) are ours.
  void watch(uint64_t begin, uint64_t end) noexcept;
  void unwatch(uint64_t begin, uint64_t end) noexcept;
  // False: `address` is not in any such range. Costs no lock.
  bool may_watch(uint64_t address) const noexcept;

  // A program may install a handler of its own after ours: goes in front of it again, and leaves foreign faults to it.
  void stay_in_front() noexcept;
  // There is something to refresh.
  void wake() noexcept;

 private:
  void serve() noexcept;
  bool bring(uint64_t address, bool write) noexcept;
  bool refresh(bool now) noexcept;

  std::thread thread_;
  bool started_ = false;  // under g_installing
  // Held by the serving thread while it uses a memory of the list; outside everything that it then takes.
  Mutex serving_;
  Mutex memories_mutex_;  // outside ManagedMemory's own locks, inside serving_
  std::vector<ManagedMemory*> memories_ GUARDED_BY(memories_mutex_);
  Mutex counting_;  // a leaf
  int counted_ GUARDED_BY(counting_) = 0;
};

ManagedFaults& managed_faults() noexcept;

}  // namespace gpuwire::client
