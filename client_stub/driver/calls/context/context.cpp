// Contexts that the program creates, and the current context of each thread.
#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"

namespace gpuwire::client {
namespace {

// The API version of every context since CUDA 3.2.
constexpr unsigned kApiVersion = 3020;

// Makes the top of the thread's stack the current context. With an empty stack, no context is current.
void update_current(ThreadState& thread) noexcept { t_context = thread.stack.empty() ? nullptr : thread.stack.back(); }

CUresult push(ContextState* context) noexcept {
  ThreadState* thread = thread_state();
  if (!thread) return CUDA_ERROR_OUT_OF_MEMORY;
  try {
    thread->stack.push_back(context);
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  update_current(*thread);
  return CUDA_SUCCESS;
}

// Returns the context if it may become current: a primary context always, even before it is retained; another context
// while it lives. Otherwise returns null, and `error` is the call's result.
ContextState* usable_context(CUcontext context, CUresult& error) noexcept {
  ContextState* found = context ? find_context(context) : nullptr;
  if (!found) {
    error = CUDA_ERROR_INVALID_CONTEXT;
  } else {
    error = found->destroyed.load(std::memory_order_relaxed) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
  }
  return error ? nullptr : found;
}

// Returns the context of a query, the current one for NULL, or null with the call's result in `error`. A context with a
// fault may be queried, a destroyed one may not.
ContextState* queried_context(CUcontext context, CUresult& error) noexcept {
  ContextState* found = context_or_current(context, error);
  if (found && found->destroyed.load(std::memory_order_relaxed)) error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return error ? nullptr : found;
}

}  // namespace

CUresult hand::cuCtxCreate_v4(const Caller& caller, CUcontext* out, CUctxCreateParams* parameters, unsigned int flags,
                              CUdevice ordinal) {
  const Device* device = process()->device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!out || (flags & ~kContextFlagsKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  // Execution affinity needs a server whose driver runs under MPS; CIG shares the GPU with a graphics API of the same
  // host.
  if (parameters && parameters->numExecAffinityParams != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  if (parameters && parameters->cigParams) return CUDA_ERROR_NOT_SUPPORTED;
  CUcontext handle = nullptr;
  CUresult result = leave(caller, forward::cuCtxCreate_v4(caller, &handle, nullptr, flags, ordinal));
  if (result) return result;
  auto* context = new ContextState;
  context->handle = reinterpret_cast<uint64_t>(handle);
  context->server = caller.server;
  context->device = ordinal;
  context->id = process()->next_id++;
  context->legacy.id = process()->next_id++;
  context->legacy.context = context;
  set_flags(*context, *caller.session, flags);
  {
    const std::vector<uint64_t>& limits = device->facts->limits;
    MutexLock lock(context->mutex);
    context->usage = 1;
    for (unsigned i = 0; i < kContextLimits; ++i) context->limits[i] = i < limits.size() ? limits[i] : ~0ull;
  }
  context->alive.store(true, std::memory_order_release);
  handles().attach(wire::HandleKind::context, context->handle, context);
  context->server->posted_uploads.context_begins();
  context->server->posted_uploads.end_if_several_contexts(caller);
  result = push(context);
  if (result == CUDA_SUCCESS) *out = handle;
  return result;
}

CUresult hand::cuCtxCreate_v2(const Caller& caller, CUcontext* out, unsigned int flags, CUdevice device) {
  return hand::cuCtxCreate_v4(caller, out, nullptr, flags, device);
}

CUresult hand::cuCtxCreate_v3(const Caller& caller, CUcontext* out, CUexecAffinityParam* affinity, int count,
                              unsigned int flags, CUdevice device) {
  if (count < 0 || (count > 0 && !affinity)) return CUDA_ERROR_INVALID_VALUE;
  if (count > 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return hand::cuCtxCreate_v4(caller, out, nullptr, flags, device);
}

CUresult hand::cuCtxDestroy_v2(const Caller& caller, CUcontext handle) {
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  CUresult error;
  ContextState* context = usable_context(handle, error);
  if (!context) return error;
  if (context->primary || context->is_green()) return CUDA_ERROR_INVALID_CONTEXT;
  prepare_end(*context);
  end_context(*context);
  if (context->destroyed.exchange(true, std::memory_order_acq_rel)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  CUresult result = forward::cuCtxDestroy_v2(caller, handle);
  ThreadState* thread = thread_state();
  if (thread && !thread->stack.empty() && thread->stack.back() == context) {
    thread->stack.pop_back();
    update_current(*thread);
  }
  // Faults of the destroyed context are not reported, because no later call is about it.
  return is_sticky(result) ? CUDA_SUCCESS : result;
}

CUresult hand::cuCtxAttach(const Caller& caller, CUcontext* out, unsigned int flags) {
  if (!out || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(caller.state->mutex);
  ++caller.state->usage;
  *out = as_cuda(caller.state);
  return CUDA_SUCCESS;
}

CUresult hand::cuCtxDetach(const Process&, CUcontext handle) {
  CUresult error;
  ContextState* context = queried_context(handle, error);
  if (!context) return error;
  if (context->primary || context != t_context) return CUDA_ERROR_INVALID_CONTEXT;
  {
    MutexLock lock(context->mutex);
    if (--context->usage > 0) return CUDA_SUCCESS;
  }
  return custom::cuCtxDestroy_v2(as_cuda(context));
}

// The first version refuses a context that is current (as measured on driver 580).
CUresult hand::cuCtxPushCurrent(const Process& owner, CUcontext handle) {
  if (handle && t_context && as_cuda(t_context) == handle) return CUDA_ERROR_INVALID_CONTEXT;
  return hand::cuCtxPushCurrent_v2(owner, handle);
}

CUresult hand::cuCtxPushCurrent_v2(const Process&, CUcontext handle) {
  CUresult error;
  ContextState* context = usable_context(handle, error);
  return context ? push(context) : error;
}

CUresult hand::cuCtxPopCurrent_v2(const Process&, CUcontext* out) {
  ThreadState* thread = thread_state();
  if (!thread || thread->stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out) *out = as_cuda(thread->stack.back());
  thread->stack.pop_back();
  update_current(*thread);
  return CUDA_SUCCESS;
}

// Replaces the top of the thread's stack; NULL removes the top (CUDA driver API, cuCtxSetCurrent).
CUresult hand::cuCtxSetCurrent(const Process&, CUcontext handle) {
  ContextState* current = t_context;
  if (current && current->handle == reinterpret_cast<uint64_t>(handle) &&
      !current->destroyed.load(std::memory_order_relaxed)) {
    return CUDA_SUCCESS;
  }
  ThreadState* thread = thread_state();
  if (!thread) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!handle) {
    if (!thread->stack.empty()) thread->stack.pop_back();
    update_current(*thread);
    return CUDA_SUCCESS;
  }
  CUresult error;
  ContextState* context = usable_context(handle, error);
  if (!context) return error;
  if (thread->stack.empty()) return push(context);
  thread->stack.back() = context;
  update_current(*thread);
  return CUDA_SUCCESS;
}

CUresult hand::cuCtxGetCurrent(const Process&, CUcontext* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = as_cuda(t_context);
  return CUDA_SUCCESS;
}

CUresult hand::cuCtxGetDevice_v2(const Process&, CUdevice* device, CUcontext handle) {
  if (!device) return CUDA_ERROR_INVALID_VALUE;  // also without a current context (as measured on driver 580)
  CUresult error;
  ContextState* context = queried_context(handle, error);
  if (!context) return error;
  *device = context->device;
  return CUDA_SUCCESS;
}

// In the first version a missing context comes first.
CUresult hand::cuCtxGetDevice(const Process& owner, CUdevice* device) {
  CUresult error;
  return queried_context(nullptr, error) ? hand::cuCtxGetDevice_v2(owner, device, nullptr) : error;
}

CUresult hand::cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  CUresult error = handle ? CUDA_SUCCESS : enter(Needs::context).error;
  if (is_sticky(error)) return error;
  // For a destroyed context this call returns another error than other calls do (as measured on driver 580).
  if (!queried_context(handle, error))
    return handle && error == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_ERROR_INVALID_CONTEXT : error;
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = kApiVersion;
  return CUDA_SUCCESS;
}

CUresult hand::cuCtxGetId(CUcontext handle, unsigned long long* id) {
  CUresult error = handle ? CUDA_SUCCESS : enter(Needs::context).error;
  if (is_sticky(error)) return argument_first(error, id ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
  ContextState* context = queried_context(handle, error);
  if (!context) return error;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = context->id;
  return CUDA_SUCCESS;
}

// With unified addressing, a primary context always has CU_CTX_MAP_HOST.
CUresult hand::cuCtxGetFlags(const Process&, unsigned int* flags) {
  CUresult error;
  ContextState* context = queried_context(nullptr, error);
  if (!context) return error;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  // Driver 580 reports the flags with which a context was created.
  *flags = context->base->flags.load(std::memory_order_relaxed) | (context->base->primary ? CU_CTX_MAP_HOST : 0);
  return CUDA_SUCCESS;
}

CUresult hand::cuCtxSetFlags(const Caller& caller, unsigned int flags) {
  CUresult result = leave(caller, forward::cuCtxSetFlags(caller, flags));
  if (result == CUDA_SUCCESS) set_flags(*owner(caller), *caller.session, flags);
  return result;
}

CUresult hand::cuCtxGetStreamPriorityRange(const Caller& caller, int* least, int* greatest) {
  const DeviceFacts& facts = *process()->devices[size_t(caller.state->device)].facts;
  if (least) *least = facts.stream_priority_least;
  if (greatest) *greatest = facts.stream_priority_greatest;
  return CUDA_SUCCESS;
}

CUresult hand::cuCtxGetLimit(const Caller& caller, size_t* value, CUlimit limit) {
  if (!value || unsigned(limit) >= unsigned(CU_LIMIT_MAX) || unsigned(limit) >= kContextLimits)
    return CUDA_ERROR_INVALID_VALUE;
  ContextState& context = *owner(caller);
  MutexLock lock(context.mutex);
  uint64_t known = context.limits[limit];
  if (known == ~0ull) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = known;
  return CUDA_SUCCESS;
}

// The driver rounds the value, so the client reads it back once.
CUresult hand::cuCtxSetLimit(const Caller& caller, CUlimit limit, size_t value) {
  if (CUresult result = leave(caller, forward::cuCtxSetLimit(caller, limit, value))) return result;
  size_t now = value;
  if (CUresult result = leave(caller, forward::cuCtxGetLimit(caller, &now, limit))) return result;
  if (unsigned(limit) < kContextLimits) {
    ContextState& context = *owner(caller);
    MutexLock lock(context.mutex);
    context.limits[limit] = now;
  }
  return CUDA_SUCCESS;
}

CUresult hand::cuCtxSynchronize(const Caller& caller) { return synchronise_entered(caller); }

CUresult hand::cuCtxSynchronize_v2(CUcontext handle) {
  CUresult error;
  ContextState* context = queried_context(handle, error);
  if (!context) return error;
  Caller caller = enter_context(*context);
  if (caller.error) return caller.error;
  return synchronise_entered(caller);
}

}  // namespace gpuwire::client
