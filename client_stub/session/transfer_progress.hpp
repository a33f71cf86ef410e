// The progress of long copies and uploads: one line on the terminal, which is erased when they are done.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "client_stub/session/session.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

// The time after which a transfer is shown, and the shortest time between two changes of the line.
inline constexpr std::chrono::seconds kProgressAfter{2};
inline constexpr std::chrono::milliseconds kProgressInterval{200};

// A terminal's line.
class ProgressLine {
 public:
  virtual ~ProgressLine() = default;
  // Returns whether a write is possible at this moment without waiting.
  virtual bool is_ready() noexcept = 0;
  virtual size_t columns() noexcept = 0;
  virtual void write(std::string_view text) noexcept = 0;
};

// Standard error. It is ready while it is a terminal and this process may write to it without being stopped (a
// background job may not).
std::unique_ptr<ProgressLine> standard_error_line();
// False with GPUWIRE_PROGRESS=off, and if standard error is not a terminal.
bool progress_is_wanted();

enum class Direction : uint8_t { to_gpu, from_gpu };

// The bytes that a session's connection has moved.
class Traffic {
 public:
  virtual ~Traffic() = default;
  virtual uint64_t moved_bytes(Direction direction) const noexcept = 0;
  // Returns whether everything up to this position of the outgoing stream has been sent.
  virtual bool has_left(uint64_t position) const noexcept = 0;
};

// The progress of one session. Overlapping transfers count as one: the bytes of all of them, since the first began. The
// object has no thread: threads that wait for the server poll it. Thread: any; one leaf lock.
class TransferProgress {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = Clock::time_point (*)() noexcept;

  TransferProgress(const Traffic& traffic, std::unique_ptr<ProgressLine> line, Now now = Clock::now)
      : traffic_(traffic), line_(std::move(line)), now_(now) {}

  // Around a transfer whose caller waits for its end; use LongTransfer.
  void begin(Direction direction, uint64_t bytes) noexcept;
  void end(Direction direction, uint64_t bytes) noexcept;
  // Bytes to the GPU whose end no caller waits for; they are done when everything up to `position` has been sent.
  void posted(uint64_t bytes, uint64_t position) noexcept;
  // Converts a begun transfer to the GPU into a posted one.
  void posted_begun(uint64_t bytes, uint64_t position) noexcept;

  // Draws the line when it is due. Costs one atomic load when no transfer is in flight.
  void poll() noexcept;
  // Returns the time until the next poll() is due; the maximum if no transfer is in flight.
  std::chrono::nanoseconds left() const noexcept;
  // Erases the line before other output.
  void clear() noexcept;
  // The session is over: `traffic` is no longer used.
  void stop() noexcept;

 private:
  // Transfers of one direction that overlap.
  struct Streak {
    // Unfinished transfers; the posted ones count as one.
    unsigned open = 0;
    uint64_t total_bytes = 0, finished_bytes = 0;
    // Bytes of the connection before the first transfer.
    uint64_t moved_before = 0;
    Clock::time_point begun;
  };

  void open(Direction direction, uint64_t bytes, unsigned transfers) noexcept;
  void close(Streak& streak) noexcept;
  void settle() noexcept;
  void draw(Clock::time_point now) noexcept;
  std::string text(const Streak& streak, Direction direction, Clock::time_point now) const;
  void erase() noexcept;

  const Traffic& traffic_;
  const std::unique_ptr<ProgressLine> line_;
  const Now now_;

  mutable std::mutex mutex_;
  // Guarded by mutex_:
  Streak streaks_[2];
  bool any_posted_ = false;
  uint64_t posted_bytes_ = 0, posted_until_ = 0;
  Clock::time_point looked_;
  bool drawn_ = false, stopped_ = false;

  // Something is on its way. Written under the lock; relaxed: a thread that begins a transfer sees its own.
  std::atomic<bool> active_{false};
};

// A transfer from its begin to the end of the object; inactive without a progress.
class LongTransfer {
 public:
  LongTransfer() = default;
  LongTransfer(std::shared_ptr<TransferProgress> progress, Direction direction, uint64_t bytes) noexcept
      : progress_(std::move(progress)), direction_(direction), bytes_(bytes) {
    if (progress_) progress_->begin(direction_, bytes_);
  }
  LongTransfer(const LongTransfer&) = delete;
  LongTransfer& operator=(const LongTransfer&) = delete;
  ~LongTransfer() {
    if (progress_) progress_->end(direction_, bytes_);
  }
  // Precondition: the whole transfer was appended before this position.
  void posted(uint64_t position) noexcept {
    if (auto progress = std::exchange(progress_, nullptr)) progress->posted_begun(bytes_, position);
  }

 private:
  std::shared_ptr<TransferProgress> progress_;
  Direction direction_ = Direction::to_gpu;
  uint64_t bytes_ = 0;
};

// Short transfers, which fit the connection's window, are not shown.
inline bool may_be_long(uint64_t bytes) noexcept { return bytes > wire::kPostedBulkBytesMax; }
inline LongTransfer long_transfer(const Session& session, Direction direction, uint64_t bytes) noexcept {
  return may_be_long(bytes) ? LongTransfer(session.progress(), direction, bytes) : LongTransfer();
}

}  // namespace gpuwire::client
