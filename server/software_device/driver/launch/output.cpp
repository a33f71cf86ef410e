#include "server/software_device/driver/launch/output.hpp"

#include <cstdio>
#include <utility>

namespace gpuwire::software_device {
namespace {

// Also keeps messages of several contexts from mixing.
Mutex sink_mutex;
OutputSink current_sink GUARDED_BY(sink_mutex) = nullptr;
void* current_user GUARDED_BY(sink_mutex) = nullptr;

}  // namespace

void set_output_sink(OutputSink sink, void* user) {
  const MutexLock lock(sink_mutex);
  current_sink = sink;
  current_user = user;
}

void write_output(int fd, std::string_view text) {
  const MutexLock lock(sink_mutex);
  if (current_sink != nullptr) {
    current_sink(current_user, fd, text.data(), text.size());
    return;
  }
  // Uses the program's own buffer, so that its output and the device's stay in order.
  std::fwrite(text.data(), 1, text.size(), fd == kStderr ? stderr : stdout);
}

void OutputBuffer::append(std::string_view message, size_t limit_bytes) {
  const MutexLock lock(mutex_);
  messages_.emplace_back(message);
  bytes_ += message.size();
  while (bytes_ > limit_bytes && messages_.size() > 1) {
    bytes_ -= messages_.front().size();
    messages_.pop_front();
  }
}

void OutputBuffer::flush() {
  std::deque<std::string> messages;
  {
    const MutexLock lock(mutex_);
    messages = std::exchange(messages_, {});
    bytes_ = 0;
  }
  for (const std::string& message : messages) {
    write_output(kStdout, message);
  }
}

}  // namespace gpuwire::software_device
