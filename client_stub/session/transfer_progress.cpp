#include "client_stub/session/transfer_progress.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <fmt/format.h>

#include "client_stub/session/environment.hpp"

namespace gpuwire::client {

namespace {

// Moves the cursor to the line's beginning and erases the line.
constexpr std::string_view kErase = "\r\x1b[K";
constexpr size_t kColumnsUnknown = 80;

class StandardError final : public ProgressLine {
 public:
  bool is_ready() noexcept override {
    const int error = errno;  // the program's
    bool ready = isatty(STDERR_FILENO) != 0;
    // The terminal may stop a background job that writes to it (stty tostop).
    if (ready) {
      const pid_t foreground = tcgetpgrp(STDERR_FILENO);
      ready = foreground < 0 || foreground == getpgrp();
    }
    pollfd room{STDERR_FILENO, POLLOUT, 0};
    ready = ready && ::poll(&room, 1, 0) == 1 && (room.revents & POLLOUT) != 0;
    errno = error;
    return ready;
  }

  size_t columns() noexcept override {
    winsize size{};
    const int error = errno;
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
    errno = error;
    return known ? size.ws_col : kColumnsUnknown;
  }

  void write(std::string_view text) noexcept override {
    const int error = errno;
    [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    errno = error;
  }
};

// Three significant digits.
std::string size_text(double bytes) {
  static constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return fmt::format("{:.{}f} {}", bytes, unit != 0 && bytes < 100 ? 1 : 0, kUnits[unit]);
}

}  // namespace

std::unique_ptr<ProgressLine> standard_error_line() { return std::make_unique<StandardError>(); }

bool progress_is_wanted() {
  const char* wish = setting("GPUWIRE_PROGRESS");
  return isatty(STDERR_FILENO) != 0 && (!wish || std::string_view(wish) != "off");
}

void TransferProgress::open(Direction direction, uint64_t bytes, unsigned transfers) noexcept {
  settle();
  Streak& streak = streaks_[size_t(direction)];
  if (streak.open == 0) streak = {.moved_before = traffic_.moved_bytes(direction), .begun = now_()};
  streak.open += transfers;
  streak.total_bytes += bytes;
  active_.store(true, std::memory_order_relaxed);
}

void TransferProgress::close(Streak& streak) noexcept {
  --streak.open;
  if (streaks_[0].open != 0 || streaks_[1].open != 0) return;
  active_.store(false, std::memory_order_relaxed);
  erase();
}

void TransferProgress::begin(Direction direction, uint64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  if (!stopped_) open(direction, bytes, 1);
}

void TransferProgress::end(Direction direction, uint64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  Streak& streak = streaks_[size_t(direction)];
  if (stopped_ || streak.open == 0) return;
  streak.finished_bytes += bytes;
  close(streak);
}

void TransferProgress::posted(uint64_t bytes, uint64_t position) noexcept {
  std::lock_guard lock(mutex_);
  if (stopped_) return;
  settle();
  open(Direction::to_gpu, bytes, any_posted_ ? 0 : 1);
  any_posted_ = true;
  posted_bytes_ += bytes;
  posted_until_ = position;
}

void TransferProgress::posted_begun(uint64_t bytes, uint64_t position) noexcept {
  std::lock_guard lock(mutex_);
  if (stopped_) return;
  if (any_posted_) --streaks_[size_t(Direction::to_gpu)].open;
  any_posted_ = true;
  posted_bytes_ += bytes;
  posted_until_ = position;
}

// A posted transfer ends when its last byte has been sent; no thread reports that.
void TransferProgress::settle() noexcept {
  if (!any_posted_ || !traffic_.has_left(posted_until_)) return;
  Streak& streak = streaks_[size_t(Direction::to_gpu)];
  streak.finished_bytes += posted_bytes_;
  posted_bytes_ = 0;
  any_posted_ = false;
  close(streak);
}

void TransferProgress::poll() noexcept {
  if (!active_.load(std::memory_order_relaxed)) return;
  // If another thread draws, that thread has the line.
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || stopped_) return;
  settle();
  if (streaks_[0].open == 0 && streaks_[1].open == 0) return;
  const auto now = now_();
  if (drawn_ && now - looked_ < kProgressInterval) return;
  looked_ = now;
  draw(now);
}

std::chrono::nanoseconds TransferProgress::left() const noexcept {
  return active_.load(std::memory_order_relaxed) ? std::chrono::nanoseconds(kProgressInterval)
                                                 : std::chrono::nanoseconds::max();
}

std::string TransferProgress::text(const Streak& streak, Direction direction, Clock::time_point now) const {
  const uint64_t moved = std::min(
      streak.total_bytes, std::max(streak.finished_bytes, traffic_.moved_bytes(direction) - streak.moved_before));
  const double seconds = std::chrono::duration<double>(now - streak.begun).count();
  return fmt::format("{} of {} {} the GPU, {}/s", size_text(double(moved)), size_text(double(streak.total_bytes)),
                     direction == Direction::to_gpu ? "to" : "from", size_text(double(moved) / seconds));
}

void TransferProgress::draw(Clock::time_point now) noexcept {
  try {
    std::string line;
    for (Direction direction : {Direction::to_gpu, Direction::from_gpu}) {
      const Streak& streak = streaks_[size_t(direction)];
      if (streak.open == 0 || now - streak.begun < kProgressAfter) continue;
      line += (line.empty() ? "gpuwire: " : "; ") + text(streak, direction, now);
    }
    if (line.empty() || !line_->is_ready()) return;
    // A line as wide as the terminal would wrap.
    line.resize(std::min(line.size(), std::max<size_t>(line_->columns(), 2) - 1));
    line_->write(std::string(kErase) + line);
    drawn_ = true;
  } catch (const std::exception&) {  // no memory: the copy goes on
  }
}

void TransferProgress::erase() noexcept {
  if (drawn_ && line_->is_ready()) line_->write(kErase);
  drawn_ = false;
}

void TransferProgress::clear() noexcept {
  std::lock_guard lock(mutex_);
  erase();
}

void TransferProgress::stop() noexcept {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  active_.store(false, std::memory_order_relaxed);
  erase();
}

}  // namespace gpuwire::client
