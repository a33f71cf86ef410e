// Descriptors of ours in a process that is another program's. The program may close descriptors that it has not opened,
// and open a file under the same number: the identity of the file shows whether the descriptor is still ours.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <utility>

namespace gpuwire::transport {

// In a process that is a program's: descriptors of ours that are made from now on get numbers that programs seldom come
// to, and are looked at before they are used. Others keep their numbers, and nothing is checked.
void share_numbers_with_program() noexcept;

// A descriptor of ours. Its owner's threads use it like the number; only the owner calls close() and the functions that
// move it.
class OwnDescriptor {
 public:
  constexpr OwnDescriptor() = default;
  // Takes `descriptor`, under a number of its own where the program has others; below 0: none.
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
  // Costs one system call. Async-signal-safe.
  bool is_ours() const noexcept;
  // The same, but an answer of the last microseconds is good enough: a program that is in one of our calls does nothing
  // else meanwhile. Any thread.
  bool is_ours_lately() const noexcept;
  // Leaves the program's descriptors alone. Async-signal-safe.
  void close() noexcept;

 private:
  int number_ = -1;
  dev_t device_ = 0;
  ino_t file_ = 0;                             // 0: not looked at
  mutable std::atomic<int64_t> polled_ns_{0};  // by the steady clock; publishes nothing: relaxed
};

// One that exit handlers of the program, which run after ours, find as it was.
union LastingDescriptor {
  constexpr LastingDescriptor() : it() {}
  ~LastingDescriptor() {}
  OwnDescriptor it;
};

// Ends another thread's sleep in poll(): two descriptors, or one where they need not be distinguished from the
// program's.
class Waker {
 public:
  static Waker make() noexcept;
  bool valid() const noexcept { return bool(wakes_); }
  int descriptor() const noexcept { return sleeps_ ? sleeps_.get() : wakes_.get(); }  // to be polled for input
  void wake() noexcept;
  // False: nobody has.
  bool drain() noexcept;
  void close() noexcept {
    wakes_.close();
    sleeps_.close();
  }

 private:
  OwnDescriptor wakes_, sleeps_;
};

}  // namespace gpuwire::transport
