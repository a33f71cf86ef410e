// What happens when the program touches managed memory that is not accessible: a handler of SIGSEGV hands the address to a thread of ours,
// which brings the memory, and the program's instruction is done again. Any other fault goes where it went without us.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace gpuwire::client {

// Any thread. The thread that serves faults also calls ManagedMemory::refresh() while there is need.
class ManagedFaults {
 public:
  // Installs the handler and starts the thread, once. False: the system gives no thread.
  bool start() noexcept;
  // Ends the thread, at the end of the process, when all managed memory has been opened: faults are then the program's own, but for those
  // that came before.
  void stop() noexcept;
  void after_fork_in_child() noexcept;

  // Faults in [begin, end) are ours.
  void watch(uint64_t begin, uint64_t end) noexcept;
  void unwatch(uint64_t begin, uint64_t end) noexcept;
  // False: `address` is not in any such range. Costs no lock.
  bool may_watch(uint64_t address) const noexcept;

  // A program may install a handler of its own after ours: goes in front of it again, and leaves it what is not ours.
  void stay_in_front() noexcept;
  // There is something to refresh.
  void wake() noexcept;

 private:
  void serve() noexcept;

  std::thread thread_;
  bool started_ = false;  // under the lock of start()
};

ManagedFaults& managed_faults() noexcept;

}  // namespace gpuwire::client
