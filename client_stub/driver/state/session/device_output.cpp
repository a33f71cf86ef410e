#include "client_stub/driver/state/session/device_output.hpp"

#include <cstdio>
#include <new>
#include <utility>

#include "client_stub/driver/process/log_stderr.hpp"

namespace gpuwire::client {

void DeviceOutput::keep(bool to_stderr, std::span<const std::byte> text) noexcept {
  bool lost = false;
  {
    MutexLock lock(mutex_);
    std::vector<std::byte>& kept = kept_[to_stderr];
    try {
      if (text.size() > kKeptBytesMax - kept.size()) throw std::bad_alloc();
      kept.insert(kept.end(), text.begin(), text.end());
    } catch (...) {
      lost = !std::exchange(notified_, true);
    }
    any_.store(true, std::memory_order_release);
  }
  if (lost) log_stderr("device code printed more than fits between two synchronisations: some of it is lost");
}

// The stream's lock comes first: a thread that holds it (flockfile) and synchronises then cannot deadlock, and the
// pieces of two threads are written in their order.
void DeviceOutput::write_stream(bool to_stderr) noexcept {
  FILE* stream = to_stderr ? stderr : stdout;
  if (!stream) return;
  ::flockfile(stream);
  std::vector<std::byte> text;
  {
    MutexLock lock(mutex_);
    text.swap(kept_[to_stderr]);
    if (kept_[!to_stderr].empty()) any_.store(false, std::memory_order_release);
  }
  if (!text.empty()) ::fwrite_unlocked(text.data(), 1, text.size(), stream);
  ::funlockfile(stream);
}

void DeviceOutput::write_kept() noexcept {
  bool waiting[2];
  {
    MutexLock lock(mutex_);
    for (int i = 0; i < 2; ++i) waiting[i] = !kept_[i].empty();
  }
  for (int i = 0; i < 2; ++i) {
    if (waiting[i]) write_stream(i == 1);
  }
}

void DeviceOutput::ended(SessionEnd how) noexcept {
  if (how == SessionEnd::closed) write();
}

}  // namespace gpuwire::client
