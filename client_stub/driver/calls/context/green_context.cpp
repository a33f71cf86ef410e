// Green contexts. A green context has some of a device's multiprocessors, and streams of its own. All else belongs to
// the primary context, which the green context retains. The handle of a green context is also the handle of the context
// made of it, as with NVIDIA's driver.
#include <new>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/calls/stream/create_stream.hpp"
#include "client_stub/driver/state/stream/stream_call.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"
#include "protocol/cuda_abi/private_tables.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

// Returns the state of a green context, even of a destroyed one; null if the handle has never been one. `error` is
// CUDA_SUCCESS for a living green context, else the call's result.
ContextState* find_green(CUgreenCtx green, CUresult& error) noexcept {
  ContextState* found = green ? find_context(reinterpret_cast<CUcontext>(green)) : nullptr;
  if (found && !found->is_green()) found = nullptr;
  error = !found                                             ? CUDA_ERROR_INVALID_CONTEXT
          : found->destroyed.load(std::memory_order_relaxed) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                             : CUDA_SUCCESS;
  return found;
}

CUcontext context_of(CUgreenCtx green) noexcept { return reinterpret_cast<CUcontext>(green); }

// Returns a new context that shares the objects of `primary`, or null if there is no memory or no free handle.
ContextState* make_green(ContextState& primary) noexcept {
  auto* context = new (std::nothrow) ContextState;
  if (!context) return nullptr;
  context->handle = handles().create(wire::HandleKind::context, primary.server);
  if (!context->handle) {
    delete context;
    return nullptr;
  }
  context->server = primary.server;
  context->device = primary.device;
  context->base = &primary;
  context->id = process()->next_id++;
  context->legacy.id = process()->next_id++;
  context->legacy.context = context;
  return context;
}

// Ends the green context. Returns false if another thread has ended it. The context's streams keep their states, so
// that calls on them report the destroyed context.
bool end_green(ContextState& context) noexcept {
  if (context.destroyed.exchange(true, std::memory_order_acq_rel)) return false;
  cuda_abi::context_local_storage().drop_context(as_cuda(&context));
  context.alive.store(false, std::memory_order_release);
  context.captures.store(0, std::memory_order_relaxed);
  context.blocking_captures.store(0, std::memory_order_relaxed);
  return true;
}

CUresult create(const Caller& caller, CUgreenCtx* out, CUdevResourceDesc descriptor, const Device& device,
                unsigned flags) noexcept {
  ContextState* context = make_green(*device.primary);
  if (!context) return CUDA_ERROR_OUT_OF_MEMORY;
  // Posted uploads rely on the NULL stream, for which streams of another context do not wait.
  caller.server->posted_uploads.end(caller);
  CUresult result = send::call_green_create(*caller.session, 0,
                                            {.context = context->handle,
                                             .primary = device.primary->handle,
                                             .descriptor = reinterpret_cast<uint64_t>(descriptor),
                                             .flags = flags});
  if (result) {
    // The handle is not reused, like that of any context.
    delete context;
    return result;
  }
  context->alive.store(true, std::memory_order_release);
  handles().attach(wire::HandleKind::context, context->handle, context);
  *out = reinterpret_cast<CUgreenCtx>(context->handle);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult hand::cuGreenCtxCreate(const Caller& caller, CUgreenCtx* out, CUdevResourceDesc descriptor, CUdevice ordinal,
                                unsigned int flags) {
  const Device* device = process()->device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  // Without a descriptor the green context has the whole device (as measured on driver 580).
  bool known =
      !descriptor || handles().known(wire::HandleKind::device_resource_desc, reinterpret_cast<uint64_t>(descriptor));
  if (!out || !known || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  // The green context retains the primary context until its own destruction.
  CUcontext primary = nullptr;
  if (CUresult error = custom::cuDevicePrimaryCtxRetain(&primary, ordinal)) return error;
  CUresult result = create(caller, out, descriptor, *device, flags);
  if (result) {
    custom::cuDevicePrimaryCtxRelease_v2(ordinal);
  } else {
    MutexLock lock(device->primary->mutex);
    ++device->primary->greens;
  }
  return result;
}

CUresult hand::cuGreenCtxDestroy(CUgreenCtx green) {
  CUresult error;
  ContextState* context = find_green(green, error);
  if (error) return error;
  if (!end_green(*context)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  Caller caller = enter(Needs::initialised);
  CUresult result = caller.error;
  if (!result) {
    result = send::call_green_destroy(*caller.session, 0, {.context = context->handle});
  }
  {
    MutexLock lock(context->base->mutex);
    --context->base->greens;
  }
  custom::cuDevicePrimaryCtxRelease_v2(context->device);
  return is_sticky(result) ? CUDA_SUCCESS : result;
}

CUresult hand::cuCtxFromGreenCtx(const Process&, CUcontext* out, CUgreenCtx green) {
  CUresult error;
  find_green(green, error);
  if (error) return error;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = context_of(green);
  return CUDA_SUCCESS;
}

CUresult hand::cuGreenCtxGetId(CUgreenCtx green, unsigned long long* id) {
  // Without a handle the call is about the current context, if that is a green one. A sticky error of the current
  // context is reported first, but after a missing output (as measured on driver 580).
  const CUresult fault = green ? CUDA_SUCCESS : enter(Needs::context).error;
  if (is_sticky(fault)) return argument_first(fault, id ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
  if (!green && t_context && t_context->is_green()) green = reinterpret_cast<CUgreenCtx>(t_context->handle);
  CUresult error;
  ContextState* context = find_green(green, error);
  if (error) return error;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult hand::cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource* resource, CUdevResourceType type) {
  CUresult error;
  ContextState* context = find_green(green, error);
  if (error) return error;
  Caller caller = enter_context(*context);
  if (caller.error) return caller.error;
  if (!resource) return CUDA_ERROR_INVALID_VALUE;
  return leave(caller, forward::cuCtxGetDevResource(caller, context_of(green), resource, type));
}

CUresult hand::cuGreenCtxStreamCreate(CUstream* out, CUgreenCtx green, unsigned int flags, int priority) {
  CUresult error;
  ContextState* context = find_green(green, error);
  if (error) return error;
  Caller caller = enter_context(*context);
  if (caller.error) return caller.error;
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  return create_stream(caller, out, flags, priority);
}

CUresult hand::cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
  CUresult error;
  find_green(green, error);
  return error ? error : custom::cuCtxRecordEvent(context_of(green), event);
}

CUresult hand::cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
  CUresult error;
  find_green(green, error);
  return error ? error : custom::cuCtxWaitEvent(context_of(green), event);
}

}  // namespace gpuwire::client
