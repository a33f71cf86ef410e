#include "client_stub/driver/process/call_frame.hpp"

#include <pthread.h>
#include <unwind.h>

#include <csignal>

#include "client_stub/driver/process/process.hpp"

namespace gpuwire::client {

thread_local constinit CallFrame* t_frame __attribute__((tls_model("initial-exec"))) = nullptr;
thread_local constinit bool t_uncancelled __attribute__((tls_model("initial-exec"))) = false;

namespace {

// A walk up the stack, to the function in whose part of it `address` lies.
struct Walk {
  uintptr_t address, below = 0;
  bool found = false;
  uintptr_t returns_to = 0;  // where that function does
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

// The memory of an abandoned stack belongs to later calls, which may not have written to all of it: the stack itself
// then shows the owner. A walk ends early at code without unwind tables: nothing is taken from a call that may
// continue. A call that has begun above the frame has left it below, where nothing is any more, unless a handler has a
// stack of its own.
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
  // A cancellation that the program itself has deferred is the program's to allow again.
  holds_cancellation_ = t_uncancelled = before == PTHREAD_CANCEL_ENABLE;
}

void CallFrame::let_cancel() {
  t_uncancelled = false;
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
}

void CallFrame::enter_again() noexcept {
  // An exit handler behind ours, which asks where nothing is given back any more: a walk up the stack takes locks that
  // the interrupted call may hold.
  if (absent_process() == CUDA_ERROR_DEINITIALIZED) return;
  if (outer_ != this && outer_->is_there()) return;
  outer_ = nullptr;
  t_frame = nullptr;
  if (t_uncancelled) let_cancel();
  if (Process* owner = process()) owner->connection->take_back_from_left_call();
}

}  // namespace gpuwire::client
