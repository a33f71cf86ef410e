// What device code prints. NVIDIA's driver writes it through the program's own stdout, inside a call of the program
// that waits, so it keeps its place among what the program prints, also where stdout is a file or a pipe. Here it
// arrives with notices, on whichever thread reads the connection; it is kept until a call that waits is about to
// return.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

// That of one session. Any thread.
class DeviceOutput final : public SessionPart {
 public:
  explicit DeviceOutput(SessionParts& parts) noexcept : SessionPart(parts) {}

  // What a program leaves unwritten; past it text is lost, as the driver's own buffer loses it, and a line says so.
  static constexpr size_t kKeptBytesMax = 256u << 20;

  // From a notice: under a leaf lock, without stdio, whose locks the program may hold.
  void keep(bool to_stderr, std::span<const std::byte> text) noexcept;
  // Writes what is kept, through stdio. With no lock of ours held.
  void write() noexcept {
    if (any_.load(std::memory_order_acquire)) [[unlikely]]
      write_kept();
  }
  // Closed: the last is written. Lost: by the call that finds it out, since it may be written in calls of the program
  // alone.
  void ended(SessionEnd how) noexcept override;
  void after_fork_in_child() noexcept override {}  // what the parent has kept is the parent's

 private:
  void write_kept() noexcept;
  void write_stream(bool to_stderr) noexcept;

  Mutex mutex_;                                        // a leaf
  std::vector<std::byte> kept_[2] GUARDED_BY(mutex_);  // stdout, stderr
  bool notified_ GUARDED_BY(mutex_) = false;           // that text was lost
  std::atomic<bool> any_{
      false};  // something is kept; stored under mutex_, so that who sees it set finds the text there
};

}  // namespace gpuwire::client
