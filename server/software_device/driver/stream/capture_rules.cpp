#include "server/software_device/driver/stream/capture_rules.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "forbidden_by_captures.hpp"
#include "server/software_device/driver/call/driver_state.hpp"

namespace gpuwire::software_device {
namespace {

// The active captures, guarded by graph_mutex. Never destroyed.
std::vector<std::shared_ptr<CaptureSession>>& active() {
  static auto* const all = new std::vector<std::shared_ptr<CaptureSession>>;
  return *all;
}

// active().size(), stored under graph_mutex. Relaxed: a capture that another thread is just beginning may be missed.
std::atomic<size_t> active_count{0};

// Makes all captures invalid for which `matters` returns true.
template <class Matters>
CUresult refuse(CUresult error, Matters&& matters) {
  if (active_count.load(std::memory_order_relaxed) == 0) {
    return CUDA_SUCCESS;
  }
  CUresult result = CUDA_SUCCESS;
  const std::lock_guard lock(graph_mutex());
  for (const auto& session : active()) {
    if (matters(*session)) {
      session->invalidated = true;
      result = error;
    }
  }
  return result;
}

// Returns whether an action of the calling thread affects a capture.
bool noticed(const CaptureSession& session) {
  const CUstreamCaptureMode mode = capture_mode();
  const bool own = session.thread == capture_thread() && session.mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
                   mode != CU_STREAM_CAPTURE_MODE_RELAXED;
  return own || (mode == CU_STREAM_CAPTURE_MODE_GLOBAL && session.mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

}  // namespace

const void* capture_thread() noexcept {
  thread_local const char mark = 0;
  return &mark;
}

CUstreamCaptureMode& capture_mode() noexcept {
  thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

void note_capture(std::shared_ptr<CaptureSession> session) {
  active().push_back(std::move(session));
  active_count.store(active().size(), std::memory_order_relaxed);
}

void note_capture_end(const CaptureSession& session) {
  std::erase_if(active(), [&](const auto& each) { return each.get() == &session; });
  active_count.store(active().size(), std::memory_order_relaxed);
}

bool is_captured_into(const Graph& graph) {
  return std::ranges::any_of(active(), [&](const auto& session) { return session->graph.get() == &graph; });
}

void end_captures(const Context& context) {
  const std::lock_guard lock(graph_mutex());
  std::erase_if(active(), [&](const auto& each) { return each->context == &context; });
  active_count.store(active().size(), std::memory_order_relaxed);
}

CUresult permit_unsafe_call() { return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, noticed); }

CUresult permit_unless_failed() {
  const auto slot = current_slot();
  const auto context = slot == nullptr ? nullptr : slot->live();
  return context != nullptr && context->fault() != CUDA_SUCCESS ? CUDA_SUCCESS : permit_unsafe_call();
}

CUresult permit_function(const char* name) {
  if (active_count.load(std::memory_order_relaxed) == 0) {
    return CUDA_SUCCESS;
  }
  const auto found =
      std::ranges::lower_bound(api::kForbiddenByCaptures, std::string_view(name), {}, &api::ForbiddenByCaptures::name);
  if (found == std::end(api::kForbiddenByCaptures) || found->name != name) {
    return CUDA_SUCCESS;
  }
  return found->fault_first ? permit_unless_failed() : permit_unsafe_call();
}

CUresult permit_synchronisation(const Context& context, const ContextSlot* slot) {
  const bool green = slot != nullptr && slot->green_of != nullptr;
  return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&](const CaptureSession& session) {
    return session.context == &context && session.origin->green.get() == (green ? slot : nullptr);
  });
}

bool blocking_capture_in(const Context& context) {
  if (active_count.load(std::memory_order_relaxed) == 0) {
    return false;
  }
  const std::lock_guard lock(graph_mutex());
  return std::ranges::any_of(active(),
                             [&](const auto& session) { return session->context == &context && session->blocking; });
}

CUresult permit_stream_call(const Context& context, const Stream& stream) {
  if (stream.kind != Stream::Kind::legacy) {
    return CUDA_SUCCESS;
  }
  return refuse(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                [&](const CaptureSession& session) { return session.context == &context && session.blocking; });
}

}  // namespace gpuwire::software_device
