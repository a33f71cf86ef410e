// The output of device code. NVIDIA's driver writes it through the program's own stdout, during a call of the program
// that waits, so it has its place in the program's output, even if stdout is a file or a pipe. Here the output arrives
// with notices, on whichever thread reads the connection, and is stored until a call that waits is about to return.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

// The device output of one session. Any thread.
class DeviceOutput final : public SessionPart {
 public:
  explicit DeviceOutput(SessionParts& parts) noexcept : SessionPart(parts) {}

  // The maximum of stored output. Beyond it text is lost, as the driver's own buffer loses it, and a line reports that.
  static constexpr size_t kKeptBytesMax = 256u << 20;

  // Stores the text of a notice: under a leaf lock, without stdio, whose locks the program may hold.
  void keep(bool to_stderr, std::span<const std::byte> text) noexcept;
  // Writes the stored text through stdio. Lock: none of the client's.
  void write() noexcept {
    if (any_.load(std::memory_order_acquire)) [[unlikely]]
      write_kept();
  }
  // When the session is closed, the function writes the last text. After a loss, the call that finds the loss does,
  // since only calls of the program may write.
  void ended(SessionEnd how) noexcept override;
  void after_fork_in_child() noexcept override {}  // what the parent has kept is the parent's

 private:
  void write_kept() noexcept;
  void write_stream(bool to_stderr) noexcept;

  // A leaf.
  Mutex mutex_;
  // The text for stdout and for stderr.
  std::vector<std::byte> kept_[2] GUARDED_BY(mutex_);
  // The loss of text has been reported.
  bool notified_ GUARDED_BY(mutex_) = false;
  // Something is kept; stored under mutex_, so that who sees it set finds the text there.
  std::atomic<bool> any_{false};
};

}  // namespace gpuwire::client
