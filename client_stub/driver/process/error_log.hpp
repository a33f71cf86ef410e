// The driver's error log, as far as the program's own calls fill it: one message for each call that failed, with
// callbacks and dumps.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

inline constexpr size_t kErrorLogBytesMax = 25600;  // cuda.h, cuLogsDumpToMemory; the oldest messages give way
inline constexpr size_t kLogCallbacksMax = 1024;

// All threads; a leaf lock, never held while a callback runs.
class ErrorLog {
 public:
  // A call returned an error to the program: stores the message and calls the callbacks, on this thread.
  void note(const char* function, CUresult result) noexcept;

  // 0: no function, or too many.
  uint64_t register_callback(CUlogsCallback function, void* user);
  bool unregister_callback(uint64_t handle);

  // The number of the next message.
  uint32_t next();
  // The messages from `iterator` on (null: all), each a line; the iterator moves behind them. `bytes_max` counts the
  // terminating zero: older messages are left out, with a line that says so, until the rest fits. False: not even one
  // does.
  bool dump(uint32_t* iterator, size_t bytes_max, std::string& out);

  // The child has one thread, and may have been forked while another held the lock.
  void after_fork_in_child() noexcept { new (&mutex_) Mutex; }

 private:
  struct Callback {
    uint64_t handle;
    CUlogsCallback function;
    void* user;
  };
  void add(std::string message) REQUIRES(mutex_);

  Mutex mutex_;
  std::deque<std::string> lines_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
  // The number of the next line.
  uint32_t next_ GUARDED_BY(mutex_) = 0;
  std::vector<Callback> callbacks_ GUARDED_BY(mutex_);
  uint64_t next_callback_ GUARDED_BY(mutex_) = 1;
};

ErrorLog& error_log() noexcept;

}  // namespace gpuwire::client
