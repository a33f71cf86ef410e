#include "protocol/transport/own_descriptor.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>

namespace gpuwire::transport {

namespace {

// The first number for gpuwire's descriptors: above the numbers that programs close one by one, and below the usual
// limit of 1024 with room for some descriptors.
constexpr int kFirstNumber = 960;
// With a low limit, the highest numbers are used. The kernel's table of descriptors is as long as the highest number.
constexpr int kNumbersLeft = 64;
constexpr int64_t kPollAgainNs = 20'000;

// Relaxed: set before there is any descriptor.
constinit std::atomic<bool> g_shared{false};

bool shared() noexcept { return g_shared.load(std::memory_order_relaxed); }

// Returns a duplicate of `descriptor` under a number that programs rarely use, and closes `descriptor`. Returns
// `descriptor` itself if there is no such number.
int move_up(int descriptor) noexcept {
  rlimit numbers{};
  if (getrlimit(RLIMIT_NOFILE, &numbers) != 0 || numbers.rlim_cur <= rlim_t(2 * kNumbersLeft)) return descriptor;
  const int first =
      numbers.rlim_cur >= rlim_t(kFirstNumber + kNumbersLeft) ? kFirstNumber : int(numbers.rlim_cur) - kNumbersLeft;
  if (descriptor >= first) return descriptor;
  const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, first);
  if (moved < 0) return descriptor;
  ::close(descriptor);
  return moved;
}

}  // namespace

void share_numbers_with_program() noexcept { g_shared.store(true, std::memory_order_relaxed); }

OwnDescriptor::OwnDescriptor(int descriptor) noexcept : number_(descriptor) {
  if (descriptor < 0 || !shared()) return;
  number_ = move_up(descriptor);
  struct stat made {};
  if (fstat(number_, &made) != 0) return;
  device_ = made.st_dev;
  file_ = made.st_ino;
}

bool OwnDescriptor::is_ours() const noexcept {
  if (number_ < 0 || file_ == 0) return number_ >= 0;
  struct stat found {};
  return fstat(number_, &found) == 0 && found.st_dev == device_ && found.st_ino == file_;
}

bool OwnDescriptor::is_ours_lately() const noexcept {
  if (number_ < 0 || file_ == 0) return number_ >= 0;
  const int64_t now = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (now - polled_ns_.load(std::memory_order_relaxed) < kPollAgainNs) return true;
  if (!is_ours()) return false;
  polled_ns_.store(now, std::memory_order_relaxed);
  return true;
}

void OwnDescriptor::close() noexcept {
  if (is_ours()) ::close(number_);
  number_ = -1;
}

// All eventfds have the same inode, so a pipe is used where gpuwire's descriptors must be distinguished from the
// program's.
Waker Waker::make() noexcept {
  Waker waker;
  if (!shared()) {
    waker.wakes_ = OwnDescriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    return waker;
  }
  int ends[2];
  if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) return waker;
  waker.sleeps_ = OwnDescriptor(ends[0]);
  waker.wakes_ = OwnDescriptor(ends[1]);
  return waker;
}

void Waker::wake() noexcept {
  constexpr uint64_t kOne = 1;
  if (wakes_.is_ours()) [[maybe_unused]]
    ssize_t written = ::write(wakes_.get(), &kOne, sizeof kOne);
}

bool Waker::drain() noexcept {
  uint64_t wakes[64];
  const OwnDescriptor& sleeps = sleeps_ ? sleeps_ : wakes_;
  return sleeps.is_ours() && ::read(sleeps.get(), wakes, sizeof wakes) > 0;
}

}  // namespace gpuwire::transport
