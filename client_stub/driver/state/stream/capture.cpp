#include "client_stub/driver/state/stream/capture.hpp"

#include <algorithm>
#include <utility>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/session/server_session.hpp"

namespace gpuwire::client {
namespace {

// Programs may identify captures by these over the lifetime of the process (CUDA driver API, cuStreamGetCaptureInfo),
// across all sessions.
constinit std::atomic<uint64_t> g_next_capture{1};

}  // namespace

Capture* Captures::find(uint64_t id) noexcept {
  auto found = std::find_if(active_.begin(), active_.end(), [&](const Capture& capture) { return capture.id == id; });
  return found == active_.end() ? nullptr : &*found;
}

CUresult Captures::add(Capture capture, StreamState& origin) noexcept {
  ContextState& context = *capture.context;
  const bool blocking = capture.blocking;
  capture.id = g_next_capture.fetch_add(1, std::memory_order_relaxed);
  const uint64_t id = capture.id;
  MutexLock lock(mutex_);
  try {
    active_.push_back(std::move(capture));
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  count_.store(uint32_t(active_.size()), std::memory_order_release);
  origin.capture.store(id, std::memory_order_release);
  context.captures.fetch_add(1, std::memory_order_relaxed);
  if (blocking) context.blocking_captures.fetch_add(1, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

void Captures::remove(const Capture& capture) noexcept {
  handles().for_each(wire::HandleKind::stream, capture.context->server, [&](uint64_t, void* object) {
    uint64_t id = capture.id;
    if (object) static_cast<StreamState*>(object)->capture.compare_exchange_strong(id, 0, std::memory_order_relaxed);
  });
  MutexLock lock(mutex_);
  const Capture* found = find(capture.id);
  if (!found) return;                     // the context may have ended, and its captures with it
  const bool blocking = found->blocking;  // a stream may have joined since the caller read it
  std::erase_if(active_, [&](const Capture& other) { return other.id == capture.id; });
  count_.store(uint32_t(active_.size()), std::memory_order_release);
  capture.context->captures.fetch_sub(1, std::memory_order_relaxed);
  if (blocking) capture.context->blocking_captures.fetch_sub(1, std::memory_order_relaxed);
}

void Captures::remove_of(ContextState& context) noexcept {
  MutexLock lock(mutex_);
  std::erase_if(active_, [&](const Capture& capture) { return capture.context == &context; });
  count_.store(uint32_t(active_.size()), std::memory_order_release);
  context.captures.store(0, std::memory_order_relaxed);
  context.blocking_captures.store(0, std::memory_order_relaxed);
}

CUresult permit_unsafe_call() noexcept {
  Caller caller = enter(Needs::initialised);
  return caller.error ? CUDA_SUCCESS : caller.server->captures.permit_unsafe_call();
}

CUresult permit_unless_failed() noexcept {
  return is_sticky(enter(Needs::context).error) ? CUDA_SUCCESS : permit_unsafe_call();
}

bool Captures::find(const StreamState& stream, Capture& out) {
  MutexLock lock(mutex_);
  const Capture* found = find(stream.capture.load(std::memory_order_acquire));
  if (found) out = *found;
  return found != nullptr;
}

bool Captures::invalidate(uint64_t id) noexcept {
  MutexLock lock(mutex_);
  Capture* capture = find(id);
  return capture && !std::exchange(capture->invalidated, true);
}

void Captures::invalidate(const StreamState& stream) noexcept {
  if (uint64_t id = stream.capture.load(std::memory_order_acquire)) invalidate(id);
}

CUresult Captures::permit_work(ContextState& context, uint64_t wire_stream) noexcept {
  if (wire_stream > wire::kStreamLegacy) {
    const StreamState* stream = find_stream(&context, wire_stream);
    bool invalid = stream && status(*stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  }
  CUresult result = CUDA_SUCCESS;
  MutexLock lock(mutex_);
  for (Capture& capture : active_) {
    if (capture.context != &context || !capture.blocking) continue;
    capture.invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return result;
}

CUresult Captures::permit_synchronisation(ContextState& context) noexcept {
  if (count_.load(std::memory_order_relaxed) == 0) [[likely]]
    return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  MutexLock lock(mutex_);
  for (Capture& capture : active_) {
    if (capture.context != &context) continue;
    capture.invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult Captures::permit_wait(const StreamState& stream, uint64_t from, bool recorded) noexcept {
  uint64_t own = stream.capture.load(std::memory_order_acquire);
  MutexLock lock(mutex_);
  Capture* here = own ? find(own) : nullptr;
  Capture* there = from ? find(from) : nullptr;
  if (here && here->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (here && there && here != there) {
    here->invalidated = there->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  // The event belongs to an ended capture; the stream's own capture continues.
  if (here && from && !there) return CUDA_ERROR_INVALID_VALUE;
  if (here && !there && recorded) {
    here->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  return there && there->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

bool Captures::is_active(uint64_t capture) noexcept {
  if (count_.load(std::memory_order_relaxed) == 0) [[likely]]
    return false;
  MutexLock lock(mutex_);
  return find(capture) != nullptr;
}

bool Captures::has_graph(uint64_t graph) noexcept {
  if (graph == 0 || count_.load(std::memory_order_relaxed) == 0) [[likely]]
    return false;
  MutexLock lock(mutex_);
  return std::any_of(active_.begin(), active_.end(), [&](const Capture& capture) {
    return capture.told_graph == graph || reinterpret_cast<uint64_t>(capture.graph) == graph;
  });
}

CUstreamCaptureStatus Captures::status(const StreamState& stream) noexcept {
  uint64_t id = stream.capture.load(std::memory_order_acquire);
  if (id == 0) return CU_STREAM_CAPTURE_STATUS_NONE;
  MutexLock lock(mutex_);
  const Capture* capture = find(id);
  if (!capture) return CU_STREAM_CAPTURE_STATUS_NONE;
  return capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

bool Captures::join(StreamState& stream, uint64_t capture) noexcept {
  if (capture == 0) return true;
  MutexLock lock(mutex_);
  uint64_t none = 0;
  Capture* joined = find(capture);
  if (!joined) return false;
  const bool joins =
      stream.capture.compare_exchange_strong(none, capture, std::memory_order_release, std::memory_order_relaxed);
  if (joins && !joined->blocking && is_blocking(stream) && stream.context == joined->context) {
    joined->blocking = true;
    joined->context->blocking_captures.fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

CUresult Captures::permit_unsafe_call() noexcept {
  if (count_.load(std::memory_order_relaxed) == 0) [[likely]]
    return CUDA_SUCCESS;
  const ThreadState* thread = thread_state();
  CUstreamCaptureMode mode = thread ? thread->capture_mode : CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  MutexLock lock(mutex_);
  for (Capture& capture : active_) {
    bool own = capture.thread == thread_number() && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool foreign = mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !foreign) continue;
    capture.invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

}  // namespace gpuwire::client
