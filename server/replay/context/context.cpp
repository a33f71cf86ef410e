#include "server/replay/context/context.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/driver_table.hpp"
#include "server/replay/call/profiler.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/copy/upload_order.hpp"

namespace gpuwire::server {

ContextTable::~ContextTable() { end(); }

Context* ContextTable::find(uint32_t number) {
  auto found = contexts_.find(number);
  return found == contexts_.end() ? nullptr : found->second.get();
}

CUresult ContextTable::make_current(uint32_t number) {
  if (executor_.load(std::memory_order_relaxed) == std::thread::id())
    executor_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  if (number == current_number_ && (number == 0 || (current_ && current_->native))) return CUDA_SUCCESS;
  Context* context = nullptr;
  if (number != 0) {
    context = find(number);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (CUresult error = activate(*context)) return error;
  }
  CUresult result = drive(driver_.cuCtxSetCurrent, context ? context->native : nullptr);
  if (result != CUDA_SUCCESS) return result;
  current_ = context;
  current_number_ = number;
  handles_.set_context(context ? context->base : 0, number);
  return CUDA_SUCCESS;
}

void ContextTable::enter_any() {
  // If the session has no context, the one that the worker made current before the session stays current; without that
  // one, the driver reports the error itself.
  if (!current_ && !order_.empty()) static_cast<void>(make_current(order_.front()));
}

Context* ContextTable::enter_stream(CUstream stream) {
  CUcontext native = nullptr;
  if (!current_ || stream == nullptr || stream == CU_STREAM_LEGACY) return current_;
  if (drive(driver_.cuStreamGetCtx, stream, &native) != CUDA_SUCCESS || native == current_->native) return current_;
  for (uint32_t number : order_) {
    if (contexts_[number]->native != native) continue;
    // If make_current() fails, the caller's context stays current, and the driver reports the fault of the stream.
    static_cast<void>(make_current(number));
    break;
  }
  return current_;
}

CUresult ContextTable::activate(Context& context) {
  if (context.native) return CUDA_SUCCESS;
  if (context.error) return context.error;
  if (context.flags) drive(driver_.cuDevicePrimaryCtxSetFlags_v2, context.device, context.flags);
  context.error = drive(driver_.cuDevicePrimaryCtxRetain, &context.native, context.device);
  if (context.error) {
    context.native = nullptr;
    return context.error;
  }
  // The worker's early reference is no longer needed.
  if (replay_.take_prewarmed_primary(context.device)) drive(driver_.cuDevicePrimaryCtxRelease_v2, context.device);
  if (!handles_.insert(wire::HandleKind::context, context.handle, context.native)) {
    drive(driver_.cuDevicePrimaryCtxRelease_v2, context.device);
    context.native = nullptr;
    return context.error = CUDA_ERROR_INVALID_HANDLE;
  }
  context.staging = std::make_shared<StagingPool>(driver_, replay_.host_memory());
  context.events = std::make_shared<EventPool>(driver_, write_word_);
  return CUDA_SUCCESS;
}

CUresult ContextTable::retain_primary(uint64_t handle, CUdevice device, unsigned flags) {
  uint32_t number = wire_context(handle);
  if (wire::handle_kind(handle) != wire::HandleKind::context || number == 0) return CUDA_ERROR_INVALID_HANDLE;
  Context* context = find(number);
  if (context) {
    if (context->handle != handle || !context->primary || context->device != device) return CUDA_ERROR_INVALID_HANDLE;
    context->error = CUDA_SUCCESS;
    return activate(*context);
  }
  if (contexts_.size() >= kContextsMax) return CUDA_ERROR_OUT_OF_MEMORY;
  context = &add(handle, device);
  context->primary = true;
  context->flags = flags;
  return activate(*context);
}

Context& ContextTable::add(uint64_t handle, CUdevice device) {
  uint32_t number = wire_context(handle);
  auto made = std::make_unique<Context>();
  made->handle = handle;
  made->device = device;
  made->base = number;
  Context& context = *made;
  contexts_[number] = std::move(made);
  order_.push_back(number);
  return context;
}

void ContextTable::remove(uint64_t handle) {
  std::erase(order_, wire_context(handle));
  contexts_.erase(wire_context(handle));
}

bool ContextTable::adopt(uint64_t handle, CUcontext native, CUdevice device) {
  uint32_t number = wire_context(handle);
  if (number == 0 || contexts_.size() >= kContextsMax || find(number)) return false;
  if (!handles_.insert(wire::HandleKind::context, handle, native)) return false;
  Context& context = add(handle, device);
  context.native = native;
  context.staging = std::make_shared<StagingPool>(driver_, replay_.host_memory());
  context.events = std::make_shared<EventPool>(driver_, write_word_);
  return true;
}

CUresult ContextTable::create_green(uint64_t handle, uint64_t primary, CUdevResourceDesc descriptor, unsigned flags) {
  uint32_t number = wire_context(handle);
  Context* base = find(wire_context(primary));
  if (!base || base->handle != primary || !base->primary) return CUDA_ERROR_INVALID_CONTEXT;
  if (number == 0 || find(number)) return CUDA_ERROR_INVALID_HANDLE;
  if (contexts_.size() >= kContextsMax) return CUDA_ERROR_OUT_OF_MEMORY;
  if (CUresult error = activate(*base)) return error;
  replay_.sync_duties().note();  // waits in the primary context cover work in its NULL stream, too
  CUgreenCtx green = nullptr;
  CUcontext native = nullptr;
  CUresult result = drive(driver_.cuGreenCtxCreate, &green, descriptor, base->device, flags);
  if (result) return result;
  result = drive(driver_.cuCtxFromGreenCtx, &native, green);
  if (!result && !handles_.insert(wire::HandleKind::context, handle, native)) result = CUDA_ERROR_INVALID_HANDLE;
  if (result) {
    drive(driver_.cuGreenCtxDestroy, green);
    return result;
  }
  Context& context = add(handle, base->device);
  context.native = native;
  context.green = green;
  context.base = base->base;
  // The green context uses the events and pinned memory of its primary context.
  context.staging = base->staging;
  context.events = base->events;
  return CUDA_SUCCESS;
}

CUresult ContextTable::destroy_green(uint64_t handle) {
  Context* context = find(wire_context(handle));
  if (!context || context->handle != handle || !context->green) return CUDA_ERROR_INVALID_CONTEXT;
  drain(*context);
  CUgreenCtx green = context->green;
  abandon(*context);
  forget_current();
  CUresult result = drive(driver_.cuGreenCtxDestroy, green);
  remove(handle);
  return result;
}

void ContextTable::end_greens_of(uint32_t primary) {
  std::vector<uint64_t> greens;
  for_each([&](Context& context) {
    if (context.green && context.base == primary) greens.push_back(context.handle);
  });
  for (uint64_t handle : greens) destroy_green(handle);
}

void ContextTable::drain(Context& context) {
  if (!context.native) return;
  drive(driver_.cuCtxSetCurrent, context.native);
  drive(driver_.cuCtxSynchronize);
  if (order_of_uploads_) order_of_uploads_->context_ends();
  context.uploads.clear();
  context.awaited.reset();
  context.passed.clear();
  if (context.green) return;
  // The device has no work left, so the waiters and the watcher now send the data that they hold.
  context.events->all_returned(std::chrono::milliseconds(kContextDrainMs));
}

void ContextTable::abandon(Context& context) {
  if (!context.native) return;
  if (!context.green) {
    context.staging->abandon();
    context.events->abandon();
  }
  context.staging.reset();
  context.events.reset();
  if (order_of_uploads_) order_of_uploads_->context_ends();
  if (Profiler* profiler = replay_.profiler()) profiler->context_ends(context.native);
  if (context.beside) drive(driver_.cuStreamDestroy_v2, std::exchange(context.beside, nullptr));
  handles_.erase_context(wire_context(context.handle));
  handles_.erase(wire::HandleKind::context, context.handle);
  context.native = nullptr;
  context.error = CUDA_SUCCESS;
}

void ContextTable::forget_current() {
  drive(driver_.cuCtxSetCurrent, static_cast<CUcontext>(nullptr));
  current_ = nullptr;
  current_number_ = 0;
  handles_.set_context(0, 0);
}

CUresult ContextTable::release_primary(uint64_t handle) {
  Context* context = find(wire_context(handle));
  if (!context || context->handle != handle || !context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  end_greens_of(wire_context(handle));
  CUresult result = CUDA_SUCCESS;
  if (context->native) {
    drain(*context);
    CUdevice device = context->device;
    abandon(*context);
    forget_current();
    result = drive(driver_.cuDevicePrimaryCtxRelease_v2, device);
  }
  remove(handle);
  return result;
}

CUresult ContextTable::reset_primary(uint64_t handle) {
  Context* context = find(wire_context(handle));
  if (!context || context->handle != handle || !context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  context->error = CUDA_SUCCESS;
  if (!context->native) return CUDA_SUCCESS;
  end_greens_of(wire_context(handle));
  drain(*context);
  abandon(*context);
  CUresult result = drive(driver_.cuDevicePrimaryCtxReset_v2, context->device);
  // A reset does not release the references of cuDevicePrimaryCtxRetain (CUDA driver API, "Primary Context
  // Management").
  drive(driver_.cuDevicePrimaryCtxRelease_v2, context->device);
  forget_current();
  return result;
}

CUresult ContextTable::destroy(uint64_t handle) {
  Context* context = find(wire_context(handle));
  if (!context || context->handle != handle || context->primary || context->green) return CUDA_ERROR_INVALID_CONTEXT;
  drain(*context);
  CUcontext native = context->native;
  abandon(*context);
  forget_current();
  CUresult result = drive(driver_.cuCtxDestroy_v2, native);
  remove(handle);
  return result;
}

void ContextTable::end() {
  while (!order_.empty()) {
    Context& context = *contexts_[order_.back()];
    if (context.green) {
      destroy_green(context.handle);
    } else if (!context.primary) {
      destroy(context.handle);
    } else {
      // The reset frees memory that the session left in the primary context, even if another part of the process holds
      // the context, too.
      reset_primary(context.handle);
      release_primary(context.handle);
    }
  }
}

}  // namespace gpuwire::server
