#include "server/software_device/driver/launch/output.hpp"

#include <cstdio>
#include <utility>

namespace gpuwire::software_device {
namespace {

// Both are guarded by the mutex, which also keeps messages of several contexts from mixing.
std::mutex sink_mutex;
OutputSink current_sink = nullptr;
void* current_user = nullptr;

}  // namespace

void set_output_sink(OutputSink sink, void* user) {
  const std::lock_guard lock(sink_mutex);
  current_sink = sink;
  current_user = user;
}

void write_output(int fd, std::string_view text) {
  const std::lock_guard lock(sink_mutex);
  if (current_sink != nullptr) {
    current_sink(current_user, fd, text.data(), text.size());
    return;
  }
  // Uses the program's own buffer, so that its output and the device's stay in order.
  std::fwrite(text.data(), 1, text.size(), fd == kStderr ? stderr : stdout);
}

void OutputBuffer::append(std::string_view message, size_t limit_bytes) {
  const std::lock_guard lock(mutex_);
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
    const std::lock_guard lock(mutex_);
    messages = std::exchange(messages_, {});
    bytes_ = 0;
  }
  for (const std::string& message : messages) {
    write_output(kStdout, message);
  }
}

}  // namespace gpuwire::software_device
