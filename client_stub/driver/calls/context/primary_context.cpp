// Primary contexts: one for each device, with a handle that never changes. At the server a primary context exists
// between the first retain and the last release.
#include <mutex>

#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

struct Primary {
  const Caller& caller;
  const Device* device;

  Primary(const Caller& by, CUdevice ordinal) noexcept : caller(by), device(process()->device(ordinal)) {}
};

wire::message::RetainPrimary message_about(const Device& device) noexcept {
  return {.context = device.primary->handle,
          .device = device.server_ordinal,
          .flags = device.primary->flags.load(std::memory_order_relaxed)};
}

// Clears the faults, because a primary context does not inherit those of its predecessor.
void clear_faults(ContextState& context) noexcept {
  context.sticky.store(0, std::memory_order_relaxed);
  context.deferred.store(0, std::memory_order_relaxed);
  context.legacy.failed.store(0, std::memory_order_relaxed);
}

// Runs the libraries' callbacks for the end of the context. Lock: the context's mutex is released meanwhile. Returns
// false if another thread has ended the context in that time.
bool prepare(ContextState& context) noexcept REQUIRES(context.mutex) {
  const uint64_t life = context.lives;
  ++context.preparing;
  context.mutex.unlock();
  prepare_end(context);
  context.mutex.lock();
  --context.preparing;
  return context.alive.load(std::memory_order_relaxed) && context.lives == life;
}

// Ends the context unless it is in use. Precondition: prepare() has run. A thread that has retained the context
// meanwhile keeps it alive; of several threads that have prepared its end, the last one ends it.
CUresult end_unused(const Primary& primary, ContextState& context) noexcept REQUIRES(context.mutex) {
  if (context.usage > 0 || context.preparing > 0 || !context.alive.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  end_context(context);
  return send::post_release_primary(*primary.caller.session, 0, message_about(*primary.device));
}

// Sets the context's flags, which control how this process waits.
CUresult set_primary_flags(const Caller& caller, CUdevice ordinal, unsigned flags, bool while_active) noexcept {
  const Primary primary(caller, ordinal);
  if (!primary.device) return CUDA_ERROR_INVALID_DEVICE;
  if ((flags & ~kContextFlagsKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  ContextState& context = *primary.device->primary;
  if (!while_active && context.alive.load(std::memory_order_relaxed)) return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
  set_flags(context, *primary.caller.session, flags);
  return CUDA_SUCCESS;
}

}  // namespace

// The call is posted: the program continues while the server creates the context, and the first call that waits reports
// a failure.
CUresult hand::cuDevicePrimaryCtxRetain(const Caller& caller, CUcontext* out, CUdevice ordinal) {
  const Primary primary(caller, ordinal);
  if (!primary.device) return CUDA_ERROR_INVALID_DEVICE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  ContextState& context = *primary.device->primary;
  PostedUploads& uploads = context.server->posted_uploads;
  {
    MutexLock lock(context.mutex);
    if (process()->lost.load(std::memory_order_relaxed)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (!context.alive.load(std::memory_order_relaxed)) {
      clear_faults(context);
      if (CUresult error = send::post_retain_primary(*primary.caller.session, 0, message_about(*primary.device)))
        return error;
      context.alive.store(true, std::memory_order_release);
      ++context.lives;
      uploads.context_begins();
    }
    ++context.usage;
  }
  uploads.end_if_several_contexts(primary.caller);
  *out = as_cuda(&context);
  return CUDA_SUCCESS;
}

CUresult hand::cuDevicePrimaryCtxRelease_v2(const Caller& caller, CUdevice ordinal) {
  const Primary primary(caller, ordinal);
  if (!primary.device) return CUDA_ERROR_INVALID_DEVICE;
  ContextState& context = *primary.device->primary;
  MutexLock lock(context.mutex);
  if (context.usage == 0) return CUDA_ERROR_INVALID_CONTEXT;
  // Green contexts retain their primary context. The driver refuses a reset likewise (as measured on driver 580).
  if (context.usage == context.greens) return CUDA_ERROR_NOT_PERMITTED;
  if (--context.usage > 0 || !context.alive.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  prepare(context);
  return end_unused(primary, context);
}

// Ends the context in spite of its usage count. Its users still have to release it, and the next retain creates a new
// context.
CUresult hand::cuDevicePrimaryCtxReset_v2(const Caller& caller, CUdevice ordinal) {
  const Primary primary(caller, ordinal);
  if (!primary.device) return CUDA_ERROR_INVALID_DEVICE;
  ContextState& context = *primary.device->primary;
  MutexLock lock(context.mutex);
  if (!context.alive.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  if (context.greens != 0) return CUDA_ERROR_NOT_PERMITTED;
  if (context.sticky.load(std::memory_order_relaxed)) process()->lost.store(true, std::memory_order_relaxed);
  if (!prepare(context)) return end_unused(primary, context);
  if (context.greens != 0) return CUDA_ERROR_NOT_PERMITTED;
  end_context(context);
  uint64_t sequence = 0;
  Session& session = *primary.caller.session;
  if (CUresult error = send::begin_reset_primary(session, 0, message_about(*primary.device), sequence)) return error;
  lock.unlock();
  CUresult result = send::finish_reset_primary(session, sequence);
  // If another thread has begun the next context meanwhile, the faults are that context's.
  lock.lock();
  if (!context.alive.load(std::memory_order_relaxed)) clear_faults(context);
  return result;
}

CUresult hand::cuDevicePrimaryCtxSetFlags_v2(const Caller& caller, CUdevice ordinal, unsigned int flags) {
  return set_primary_flags(caller, ordinal, flags, true);
}

// The form of before CUDA 11 refuses to change the flags of an active context (as measured on driver 580).
CUresult hand::cuDevicePrimaryCtxSetFlags(const Caller& caller, CUdevice ordinal, unsigned int flags) {
  return set_primary_flags(caller, ordinal, flags, false);
}

CUresult hand::cuDevicePrimaryCtxGetState(const Process& owner, CUdevice ordinal, unsigned int* flags, int* active) {
  const Device* device = owner.device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  *flags = device->primary->flags.load(std::memory_order_relaxed);
  *active = device->primary->alive.load(std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::client
