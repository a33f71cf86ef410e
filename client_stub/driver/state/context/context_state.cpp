// Threads' stacks of contexts, and look-ups of contexts.
#include <pthread.h>

#include <new>

#include "client/forward.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"

namespace gpuwire::client {

thread_local constinit ContextState* t_context __attribute__((tls_model("initial-exec"))) = nullptr;
thread_local constinit bool t_unannounced __attribute__((tls_model("initial-exec"))) = false;

namespace {

thread_local constinit ThreadState* t_state __attribute__((tls_model("initial-exec"))) = nullptr;

// A thread's own streams end with it, as natively. The function does not run for threads that are alive when the
// process exits.
void end_thread(void* value) noexcept {
  auto* state = static_cast<ThreadState*>(value);
  t_state = nullptr;
  if (process()) end_own_streams(*state);
  delete state;
}

pthread_key_t thread_key() noexcept {
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    pthread_key_create(&made, end_thread);
    return made;
  }();
  return key;
}

}  // namespace

ThreadState* thread_state() noexcept {
  if (t_state) return t_state;
  t_state = new (std::nothrow) ThreadState;
  if (t_state) pthread_setspecific(thread_key(), t_state);
  return t_state;
}

bool in_host_callback() noexcept {
  const ThreadState* thread = thread_state();
  return thread && thread->in_callback;
}

ContextState* find_context(CUcontext context) noexcept {
  return handles().find<ContextState>(wire::HandleKind::context, reinterpret_cast<uint64_t>(context));
}

namespace {

// Precondition: the context may have a fault.
CUresult ask_for_fault(ContextState& context) noexcept {
  if (in_host_callback()) return CUDA_SUCCESS;  // a host function may send no request; the next call does
  Caller caller;
  caller.server = context.server;
  caller.session = &context.server->connection();
  caller.state = &context;
  caller.context_handle = context.base->handle;
  caller.context = uint32_t(context.handle);
  size_t free_bytes = 0, total_bytes = 0;
  const CUresult result = forward::cuMemGetInfo_v2(caller, &free_bytes, &total_bytes);
  int32_t perhaps = ContextState::kPerhapsFaulty;
  context.base->sticky.compare_exchange_strong(perhaps, is_sticky(result) ? result : 0, std::memory_order_relaxed);
  return context_health(context);
}

}  // namespace

CUresult health_at_entry(ContextState& context) noexcept {
  if (context.base->sticky.load(std::memory_order_relaxed) == ContextState::kPerhapsFaulty &&
      context.alive.load(std::memory_order_relaxed)) [[unlikely]]
    return ask_for_fault(context);
  return context_health(context);
}

void note_fault(ContextState& context, CUresult fault) noexcept {
  std::atomic<int32_t>& sticky = context.base->sticky;
  int32_t before = sticky.load(std::memory_order_relaxed);
  do {
    if (before != 0 && before != ContextState::kPerhapsFaulty) return;
  } while (!sticky.compare_exchange_weak(before, fault, std::memory_order_relaxed));
  handles().for_each(wire::HandleKind::context, context.server, [&](uint64_t, void* object) {
    auto* other = static_cast<ContextState*>(object);
    if (!other || other->device != context.device || !other->alive.load(std::memory_order_relaxed)) return;
    int32_t none = 0;
    other->base->sticky.compare_exchange_strong(none, ContextState::kPerhapsFaulty, std::memory_order_relaxed);
  });
}

ContextState* context_or_current(CUcontext context, CUresult& error) noexcept {
  ContextState* found = context ? find_context(context) : t_context;
  error = found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  return found;
}

void set_flags(ContextState& context, Session& session, unsigned flags) noexcept {
  context.flags.store(flags, std::memory_order_relaxed);
  session.wait_asleep((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC);
}

}  // namespace gpuwire::client
