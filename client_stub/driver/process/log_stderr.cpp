#include "client_stub/driver/process/log_stderr.hpp"

#include <unistd.h>

#include <atomic>
#include <string>

#include "client_stub/session/file_limit.hpp"
#include "client_stub/session/message_file.hpp"

namespace gpuwire::client {

void log_stderr(std::string_view line) noexcept {
  static std::atomic<int> lines{0};  // relaxed: only counts
  if (lines.fetch_add(1, std::memory_order_relaxed) >= kLinesMax) return;
  try {
    note_message(line);
    std::string text = "gpuwire: ";
    text.append(line);
    if (text.back() != '\n') text += '\n';
    // No stdio: the program may hold stdio's lock, or have closed the stream.
    if (!may_write(STDERR_FILENO, text.size())) return;
    [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  } catch (...) {}
}

}  // namespace gpuwire::client
