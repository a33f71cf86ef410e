// The boundary with the program: the common steps of every export around its body. The program finds its thread as it
// left it, and a call that is left by other ways than by returning releases what it held.
#pragma once

#include <cerrno>
#include <cstdint>

namespace gpuwire::client {

class CallFrame;
// The innermost call that the thread is in, or was in when it left it by siglongjmp(). The thread's own; a signal
// handler of the program that calls exit() reads it, on the same thread.
extern thread_local constinit CallFrame* t_frame __attribute__((tls_model("initial-exec")));
// The thread could be cancelled, and cannot now, by our doing.
extern thread_local constinit bool t_uncancelled __attribute__((tls_model("initial-exec")));

// Is the thread in a call, or has it left one and not called since? What the call holds it can only give back.
inline bool in_call() noexcept { return t_frame != nullptr; }

// One for each call of an export, on its stack, from before its body until after it.
//
// Cancellation: a body has places at which a thread can be cancelled, holds locks and lets no exception out. So a
// thread is cancelled when the call is over, at the program's next such place. errno: the system calls of a body are
// not the program's. Ways out: a handler that interrupted the call may leave by siglongjmp(). No destructor runs then,
// and the next call of the thread finds this frame gone.
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

  // Last of all, and not in the destructor: a thread that may be cancelled anywhere, not at certain places alone, is
  // cancelled here, by an unwinding that no destructor lets through.
  void leave() {
    mark_ = 0;
    t_frame = outer_;
    *errno_at_ = errno_;
    if (holds_cancellation_) let_cancel();
  }

  // The thread is not cancelled before this call is over.
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
  // The thread is in another call already, or has left one.
  void enter_again() noexcept;
  // Is the call of this frame under way, further up the calling thread's stack?
  bool is_there() const noexcept;

  uint64_t mark_ = 0;
  const void* const returns_to_;  // where the function does that the frame is in
  int* const errno_at_;
  const int errno_;
  bool holds_cancellation_ = false;  // it is this call that has put it off
  CallFrame* outer_;
};

}  // namespace gpuwire::client
