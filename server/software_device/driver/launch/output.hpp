// The output of device code. It is buffered until the program synchronises, as with CUDA, then passed to one sink.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::software_device {

inline constexpr int kStdout = 1;
inline constexpr int kStderr = 2;

// Receives text for the program's standard output (1) or standard error (2).
using OutputSink = void (*)(void* user, int fd, const char* text, size_t bytes);

// Null restores this process's stdout and stderr. Precondition: no device code is running.
void set_output_sink(OutputSink sink, void* user);
void write_output(int fd, std::string_view text);

// The FIFO of one context. Thread: executor threads.
class OutputBuffer {
 public:
  // The oldest messages are dropped when `limit_bytes` is reached, as with CU_LIMIT_PRINTF_FIFO_SIZE.
  void append(std::string_view message, size_t limit_bytes);
  void flush();

 private:
  Mutex mutex_;
  std::deque<std::string> messages_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace gpuwire::software_device
