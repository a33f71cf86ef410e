#include "server/base/unexpected_error.hpp"

#include <atomic>
#include <cstring>
#include <exception>

#include <spdlog/spdlog.h>
#include <unistd.h>

namespace gpuwire::server {
namespace {

// Writes without allocating, because there may be no memory.
void write_plainly(const char* text) {
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void log_error(const char* what) {
  spdlog::critical("an unexpected error ends this process: {}; sessions go on under the next one that is started",
                   what);
}

[[noreturn]] void end() {
  // Set by the first error. A later error is that of another thread while the first is logged, or the log's own.
  // Relaxed: it orders nothing.
  static std::atomic<bool> ending{false};
  if (ending.exchange(true, std::memory_order_relaxed)) {
    write_plainly("an unexpected error ends this process, and it cannot be logged\n");
    ::_exit(kUnexpectedErrorExit);
  }
  const char* what = "no exception";
  // The exception exists until the process ends, and so does its text.
  if (std::exception_ptr error = std::current_exception()) try {
      std::rethrow_exception(error);
    } catch (const std::exception& known) {
      what = known.what();
    } catch (...) {
      what = "an exception of an unknown type";
    }
  try {
    log_error(what);
  } catch (...) {
    write_plainly("an unexpected error ends this process: ");
    write_plainly(what);
    write_plainly("\n");
  }
  ::_exit(kUnexpectedErrorExit);
}

}  // namespace

void end_at_unexpected_errors() { std::set_terminate(end); }

}  // namespace gpuwire::server
