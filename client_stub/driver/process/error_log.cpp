#include "client_stub/driver/process/error_log.hpp"

#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "client_stub/driver/process/error_text.hpp"

namespace gpuwire::client {
namespace {

constexpr std::string_view kSomeAreMissing =
    "The provided buffer is not large enough to hold all messages. Some messages will be missing\n";

// If a callback's own calls fail, the callback is not called again for them.
thread_local constinit bool t_in_callback __attribute__((tls_model("initial-exec"))) = false;

std::string line_of(const std::string& message) {
  timeval now{};
  ::gettimeofday(&now, nullptr);
  tm local{};
  ::localtime_r(&now.tv_sec, &local);
  char head[96];
  std::snprintf(head, sizeof head, "[%02d:%02d:%02d.%03d][%ld][CUDA][E] ", local.tm_hour, local.tm_min, local.tm_sec,
                int(now.tv_usec / 1000), long(::syscall(SYS_gettid)));
  return head + message + "\n";
}

}  // namespace

ErrorLog& error_log() noexcept {
  static ErrorLog& log = *new ErrorLog;
  return log;
}

void ErrorLog::note(const char* function, CUresult result) noexcept {
  try {
    const char* name = error_name(result);
    std::string message =
        "Returning " + std::to_string(int(result)) + " (" + (name ? name : "?") + ") from " + function;
    std::vector<Callback> callbacks;
    {
      MutexLock lock(mutex_);
      add(line_of(message));
      if (!t_in_callback) callbacks = callbacks_;
    }
    t_in_callback = t_in_callback || !callbacks.empty();
    for (const Callback& callback : callbacks)
      callback.function(callback.user, CU_LOG_LEVEL_ERROR, message.data(), message.size());
    if (!callbacks.empty()) t_in_callback = false;
  } catch (...) {  // no memory for a message: there is none
  }
}

void ErrorLog::add(std::string line) {
  bytes_ += line.size();
  lines_.push_back(std::move(line));
  ++next_;
  while (bytes_ > kErrorLogBytesMax) {
    bytes_ -= lines_.front().size();
    lines_.pop_front();
  }
}

uint64_t ErrorLog::register_callback(CUlogsCallback function, void* user) {
  MutexLock lock(mutex_);
  if (!function || callbacks_.size() >= kLogCallbacksMax) return 0;
  callbacks_.push_back({next_callback_, function, user});
  return next_callback_++;
}

bool ErrorLog::unregister_callback(uint64_t handle) {
  MutexLock lock(mutex_);
  return std::erase_if(callbacks_, [&](const Callback& callback) { return callback.handle == handle; }) > 0;
}

uint32_t ErrorLog::next() {
  MutexLock lock(mutex_);
  return next_;
}

bool ErrorLog::dump(uint32_t* iterator, size_t bytes_max, std::string& out) {
  MutexLock lock(mutex_);
  size_t wanted = iterator ? std::min<size_t>(lines_.size(), next_ - *iterator) : lines_.size();
  size_t first = lines_.size() - wanted, bytes = 1;
  for (size_t i = first; i < lines_.size(); ++i) bytes += lines_[i].size();
  if (wanted && bytes > bytes_max) {
    bytes += kSomeAreMissing.size();
    while (first < lines_.size() && bytes > bytes_max) bytes -= lines_[first++].size();
    if (first == lines_.size()) return false;
    out = kSomeAreMissing;
  }
  for (size_t i = first; i < lines_.size(); ++i) out += lines_[i];
  if (iterator) *iterator = next_;
  return true;
}

}  // namespace gpuwire::client
