// The boundary with the program: the steps of every export around its body. The program's thread is unchanged after the
// call, and a call that ends without a return releases everything that it held.
#pragma once

#include <cerrno>
#include <cstdint>

namespace gpuwire::client {

class CallFrame;
// The thread's innermost call, or the call that the thread has left by siglongjmp(). Thread-local; a signal handler of
// the program that calls exit() reads it on the same thread.
extern thread_local constinit CallFrame* t_frame __attribute__((tls_model("initial-exec")));
// The client has disabled the thread's cancellation.
extern thread_local constinit bool t_uncancelled __attribute__((tls_model("initial-exec")));

// Returns whether the thread is in a call, or has left one and made none since. Such a call's locks can only be
// released.
inline bool in_call() noexcept { return t_frame != nullptr; }

// One for each call of an export, on its stack, around its body.
//
// Cancellation: a body has cancellation points, holds locks and lets no exception out. The thread is therefore
// cancelled only after the call, at the program's next cancellation point. errno: system calls of a body do not change
// the program's errno. Other exits: a handler that interrupted the call may leave by siglongjmp(). No destructor runs
// then, and the thread's next call finds this frame gone.
class CallFrame {
 public:
  [[gnu::always_inline]] CallFrame() noexcept
      : returns_to_(__builtin_return_address(0)), errno_at_(&errno), errno_(*errno_at_), outer_(t_frame) {
    if (outer_) [[unlikely]]
      enter_again();
    mark_ = mark_of(this);
    t_frame = this;
  }
  CallFrame(const CallFrame&) = delete;
  CallFrame& operator=(const CallFrame&) = delete;
  ~CallFrame() = default;

  // The last step, outside the destructor: with asynchronous cancellation the thread is cancelled here, by an unwinding
  // that no destructor lets through.
  void leave() {
    mark_ = 0;
    t_frame = outer_;
    *errno_at_ = errno_;
    if (holds_cancellation_) let_cancel();
  }

  // The thread is not cancelled before the end of this call.
  void hold_cancellation() noexcept {
    if (!t_uncancelled) hold();
  }

 private:
  // Excludes values that the memory contains by chance.
  static uint64_t mark_of(const CallFrame* frame) noexcept {
    return reinterpret_cast<uintptr_t>(frame) ^ 0x9e3779b97f4a7c15u;
  }
  void hold() noexcept;
  static void let_cancel();
  // The thread is in another call, or has left one.
  void enter_again() noexcept;
  // Returns whether the call of this frame is still in progress, further up the calling thread's stack.
  bool is_there() const noexcept;

  uint64_t mark_ = 0;
  const void* const returns_to_;  // the return address of the frame's function
  int* const errno_at_;
  const int errno_;
  bool holds_cancellation_ = false;  // this call has disabled it
  CallFrame* outer_;
};

}  // namespace gpuwire::client
