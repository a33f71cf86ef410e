#include "client_stub/driver/process/call_frame.hpp"

#include <pthread.h>
#include <unwind.h>

#include <csignal>

#include "client_stub/driver/process/process.hpp"

namespace gpuwire::client {

thread_local constinit CallFrame* t_frame __attribute__((tls_model("initial-exec"))) = nullptr;
thread_local constinit StackPlace t_frame_place __attribute__((tls_model("initial-exec"))) = {0, nullptr};
thread_local constinit bool t_uncancelled __attribute__((tls_model("initial-exec"))) = false;

namespace {

// A walk up the stack to the stack frame that begins at `begins_at`.
struct Walk {
  uintptr_t begins_at;
  // The beginning of the last stack frame that the walk has reached, and the return address of its function.
  uintptr_t reached = 0, returns_to = 0;
};

// Called with the context of each caller, which has the beginning of its callee's stack frame, and the address in the
// caller to which the callee returns.
_Unwind_Reason_Code step(_Unwind_Context* context, void* user) {
  auto& walk = *static_cast<Walk*>(user);
  walk.reached = _Unwind_GetCFA(context);
  walk.returns_to = _Unwind_GetIP(context);
  return walk.reached == walk.begins_at ? _URC_END_OF_STACK : _URC_NO_REASON;
}

bool on_signal_stack() noexcept {
  stack_t stack{};
  return sigaltstack(nullptr, &stack) == 0 && (stack.ss_flags & SS_ONSTACK);
}

}  // namespace

// The stack itself shows whether the outer call is in progress: a function with its return address has a stack frame at
// the same place, and is not the function of this call. A walk ends early at code without unwind tables; the outer call
// then counts as being in progress, because it may continue. If its place is below the current stack, the thread has
// left it, unless a handler runs on its own stack.
bool CallFrame::outer_is_there() const noexcept {
  const StackPlace outer = t_frame_place;
  if (outer.begins_at == place_.begins_at) return false;
  Walk walk{.begins_at = outer.begins_at};
  _Unwind_Backtrace(step, &walk);
  if (walk.reached == outer.begins_at) return walk.returns_to == reinterpret_cast<uintptr_t>(outer.returns_to);
  return walk.reached < outer.begins_at || on_signal_stack();
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
  if (outer_is_there()) return;
  outer_ = nullptr;
  t_frame = nullptr;
  if (t_uncancelled) let_cancel();
  if (Process* owner = process()) owner->connection->take_back_from_left_call();
}

}  // namespace gpuwire::client
