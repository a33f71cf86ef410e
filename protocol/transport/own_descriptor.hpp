// gpuwire's descriptors inside a user's program. The program may close descriptors that it has not opened, and may open
// another file under the same number. The identity of the file (device and inode) shows whether a descriptor is still
// gpuwire's.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <utility>

namespace gpuwire::transport {

// Declares that this process is a user's program. Descriptors of gpuwire that are created from now on get numbers that
// programs rarely use, and are verified before each use. Without this call, descriptors keep their numbers, and nothing
// is verified.
void share_numbers_with_program() noexcept;

// A descriptor of gpuwire. Threads: the owner's threads use it like the number; only the owner calls close() and the
// functions that move it.
class OwnDescriptor {
 public:
  constexpr OwnDescriptor() = default;
  // Takes over `descriptor`, and moves it to another number in a user's program. A negative value means no descriptor.
  explicit OwnDescriptor(int descriptor) noexcept;
  OwnDescriptor(OwnDescriptor&& other) noexcept
      : number_(std::exchange(other.number_, -1)), device_(other.device_), file_(other.file_) {}
  OwnDescriptor& operator=(OwnDescriptor&& other) noexcept {
    close();
    number_ = std::exchange(other.number_, -1);
    device_ = other.device_;
    file_ = other.file_;
    return *this;
  }
  ~OwnDescriptor() { close(); }

  explicit operator bool() const noexcept { return number_ >= 0; }
  int get() const noexcept { return number_; }
  // Returns true if the number still refers to gpuwire's file. Costs one system call. Async-signal-safe.
  bool is_ours() const noexcept;
  // Returns the same, but may reuse a result of the last microseconds, because a program that is inside a gpuwire call
  // does nothing else meanwhile. Thread: any.
  bool is_ours_lately() const noexcept;
  // Closes the descriptor only if it is still gpuwire's. Async-signal-safe.
  void close() noexcept;

 private:
  int number_ = -1;
  dev_t device_ = 0;
  // Inode; 0: not verified.
  ino_t file_ = 0;
  // Time of the last verification, by the steady clock. Relaxed: it publishes nothing.
  mutable std::atomic<int64_t> polled_ns_{0};
};

// A descriptor that is never destroyed, so that the program's exit handlers, which run after gpuwire's, can still use
// it.
union LastingDescriptor {
  constexpr LastingDescriptor() : it() {}
  ~LastingDescriptor() {}
  OwnDescriptor it;
};

// Waker ends another thread's sleep in poll(). It has two descriptors in a user's program, else one.
class Waker {
 public:
  static Waker make() noexcept;
  bool valid() const noexcept { return bool(wakes_); }
  // The descriptor to poll for input.
  int descriptor() const noexcept { return sleeps_ ? sleeps_.get() : wakes_.get(); }
  void wake() noexcept;
  // Consumes all wake-ups. Returns false if there was none.
  bool drain() noexcept;
  void close() noexcept {
    wakes_.close();
    sleeps_.close();
  }

 private:
  OwnDescriptor wakes_, sleeps_;
};

}  // namespace gpuwire::transport
