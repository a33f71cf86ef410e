#include "client_stub/driver/process/call_frame.hpp"

#include <pthread.h>
#include <unwind.h>

#include <csignal>

#include "client_stub/driver/process/process.hpp"

namespace gpuwire::client {

thread_local constinit CallFrame* t_frame __attribute__((tls_model("initial-exec"))) = nullptr;
thread_local constinit bool t_uncancelled __attribute__((tls_model("initial-exec"))) = false;

namespace {

// A walk up the stack to the function whose frame contains `address`.
struct Walk {
  uintptr_t address, below = 0;
  bool found = false;
  uintptr_t returns_to = 0;  // the return address of that function
};

_Unwind_Reason_Code step(_Unwind_Context* context, void* user) {
  auto& walk = *static_cast<Walk*>(user);
  if (walk.found) {
    walk.returns_to = _Unwind_GetIP(context);
    return _URC_END_OF_STACK;
  }
  const uintptr_t above = _Unwind_GetCFA(context);
  walk.found = walk.below && walk.below <= walk.address && walk.address < above;
  walk.below = above;
  return _URC_NO_REASON;
}

bool on_signal_stack() noexcept {
  stack_t stack{};
  return sigaltstack(nullptr, &stack) == 0 && (stack.ss_flags & SS_ONSTACK);
}

}  // namespace

// Later calls reuse the memory of an abandoned stack and may not have overwritten the mark, so the stack itself shows
// whether the frame exists. A walk ends early at code without unwind tables; the frame then counts as existing, because
// the call may continue. If the frame lies below the current stack, the call has left it, unless a handler runs on its
// own stack.
bool CallFrame::is_there() const noexcept {
  if (*static_cast<const volatile uint64_t*>(&mark_) != mark_of(this)) return false;
  Walk walk{.address = reinterpret_cast<uintptr_t>(this)};
  _Unwind_Backtrace(step, &walk);
  if (walk.found) return walk.returns_to == reinterpret_cast<uintptr_t>(returns_to_);
  return walk.below <= walk.address || on_signal_stack();
}

void CallFrame::hold() noexcept {
  int before = PTHREAD_CANCEL_DISABLE;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  // If the program itself has disabled cancellation, only the program enables it again.
  holds_cancellation_ = t_uncancelled = before == PTHREAD_CANCEL_ENABLE;
}

void CallFrame::let_cancel() {
  t_uncancelled = false;
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
}

void CallFrame::enter_again() noexcept {
  // For an exit handler that runs after at_exit(), nothing is released: a walk up the stack takes locks that the
  // interrupted call may hold.
  if (absent_process() == CUDA_ERROR_DEINITIALIZED) return;
  if (outer_ != this && outer_->is_there()) return;
  outer_ = nullptr;
  t_frame = nullptr;
  if (t_uncancelled) let_cancel();
  if (Process* owner = process()) owner->connection->take_back_from_left_call();
}

}  // namespace gpuwire::client
