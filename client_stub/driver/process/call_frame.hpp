// The boundary with the program: the steps of every export around its body. The program's thread is unchanged after the
// call, and a call that ends without a return releases everything that it held.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace gpuwire::client {

class CallFrame;
// The thread's innermost call, or the call that the thread has left by siglongjmp(). Thread-local; a signal handler of
// the program that calls exit() reads it on the same thread.
extern thread_local constinit CallFrame* t_frame __attribute__((tls_model("initial-exec")));
// The place of a function on its thread's stack: the address at which its stack frame begins (canonical frame address),
// and its return address.
struct StackPlace {
  uintptr_t begins_at;
  const void* returns_to;
};
// The place of t_frame's function. It is not read from the object, because later calls may reuse the memory of a call
// that was left.
extern thread_local constinit StackPlace t_frame_place __attribute__((tls_model("initial-exec")));
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
      : place_{reinterpret_cast<uintptr_t>(__builtin_dwarf_cfa()), __builtin_return_address(0)},
        errno_at_(&errno),
        errno_(*errno_at_),
        outer_(t_frame) {
    if (outer_) [[unlikely]]
      enter_again();
    t_frame_place = place_;
    // A signal handler that runs between the two steps finds the outer call, or none, and a place that exists.
    std::atomic_signal_fence(std::memory_order_release);
    t_frame = this;
  }
  CallFrame(const CallFrame&) = delete;
  CallFrame& operator=(const CallFrame&) = delete;
  ~CallFrame() = default;

  // The last step, outside the destructor: with asynchronous cancellation the thread is cancelled here, by an unwinding
  // that no destructor lets through.
  void leave() {
    t_frame = outer_;
    if (outer_) [[unlikely]]
      t_frame_place = outer_->place_;
    *errno_at_ = errno_;
    if (holds_cancellation_) let_cancel();
  }

  // The thread is not cancelled before the end of this call.
  void hold_cancellation() noexcept {
    if (!t_uncancelled) hold();
  }

 private:
  void hold() noexcept;
  static void let_cancel();
  // The thread is in another call, or has left one.
  void enter_again() noexcept;
  // Returns whether the call before this one is still in progress, further up the thread's stack.
  bool outer_is_there() const noexcept;

  const StackPlace place_;
  int* const errno_at_;
  const int errno_;
  // This call has disabled it.
  bool holds_cancellation_ = false;
  CallFrame* outer_;
};

}  // namespace gpuwire::client
