// Events.
#include <chrono>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/stream/capture.hpp"
#include "server/software_device/driver/call/refusal.hpp"

using namespace gpuwire::software_device;

namespace {

constexpr unsigned kKnownFlags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

template <typename Body>
CUresult with_event(CUevent handle, Body&& body) noexcept {
  return with_driver([&]() -> CUresult {
    const auto event = driver().events.find(handle);
    return event == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(event);
  });
}

OperationPtr recorded_by(Event& event) {
  const std::lock_guard lock(event.mutex);
  return event.recorded;
}

CUresult fault_of(const Event& event) {
  const auto context = event.context.lock();
  return context == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : context->fault();
}

CUresult elapsed(float* milliseconds, CUevent from, CUevent to) {
  return with_event(from, [&](const std::shared_ptr<Event>& start_event) -> CUresult {
    if (const CUresult fault = fault_of(*start_event); fault != CUDA_SUCCESS) {
      return milliseconds != nullptr ? fault : CUDA_ERROR_INVALID_HANDLE;  // measured on driver 580
    }
    return with_event(to, [&](const std::shared_ptr<Event>& end_event) -> CUresult {
      Event &start = *start_event, &end = *end_event;
      if (const CUresult fault = fault_of(end); fault != CUDA_SUCCESS) {
        return fault;
      }
      const OperationPtr first = recorded_by(start), last = recorded_by(end);
      if (!start.timed() || !end.timed() || first == nullptr || last == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
      }
      if (milliseconds == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;  // reported after errors of the events (measured on driver 580)
      }
      if (!first->done() || !last->done()) {
        return CUDA_ERROR_NOT_READY;
      }
      *milliseconds = std::chrono::duration<float, std::milli>(last->finished_at() - first->finished_at()).count();
      return CUDA_SUCCESS;
    });
  });
}

}  // namespace

CUresult cuEventCreate(CUevent* out, unsigned int flags) {
  return with_context([&](Context& context) -> CUresult {
    // An event for other processes has no times (CUDA driver API, cuEventCreate).
    const bool shared = (flags & CU_EVENT_INTERPROCESS) != 0;
    if (out == nullptr || (flags & ~kKnownFlags) != 0 || (shared && (flags & CU_EVENT_DISABLE_TIMING) == 0)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (shared) {
      return not_supported("an event for other processes (CU_EVENT_INTERPROCESS)");
    }
    auto event = std::make_shared<Event>();
    event->handle = driver().events.reserve();
    event->context = context.weak_from_this();
    event->flags = flags;
    driver().events.insert(event->handle, event);
    *out = event->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy_v2(CUevent handle) {
  return with_driver([&]() -> CUresult {
    const auto event = driver().events.take(handle);
    if (event == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    const auto context = event->context.lock();
    return context == nullptr ? CUDA_SUCCESS : context->fault();  // like the result for a stream
  });
}

CUresult cuEventDestroy(CUevent handle) { return cuEventDestroy_v2(handle); }

CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream_handle, unsigned int flags) {
  return with_own_stream(stream_handle, [&](Context& context, Stream& stream) {
    return with_event(handle, [&](const std::shared_ptr<Event>& event) -> CUresult {
      if (flags > CU_EVENT_RECORD_EXTERNAL) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      if (flags == CU_EVENT_RECORD_EXTERNAL && !is_capturing(stream)) {
        return CUDA_ERROR_ILLEGAL_STATE;  // measured on driver 580
      }
      if (event->context.lock().get() != &context) {
        return CUDA_ERROR_INVALID_HANDLE;
      }
      if (is_capturing(stream)) {
        return capture_record(context, stream, event, flags == CU_EVENT_RECORD_EXTERNAL);
      }
      const std::lock_guard lock(event->mutex);
      event->recorded = context.submit(stream, nullptr);
      event->captured.store(false, std::memory_order_release);
      return CUDA_SUCCESS;
    });
  });
}

CUresult cuEventRecord(CUevent handle, CUstream stream) {
  return cuEventRecordWithFlags(handle, stream, CU_EVENT_RECORD_DEFAULT);
}

CUresult cuEventQuery(CUevent handle) {
  return with_event(handle, [](const std::shared_ptr<Event>& event) -> CUresult {
    if (event->captured.load(std::memory_order_acquire)) {
      return refuse_captured(*event);
    }
    if (const CUresult fault = fault_of(*event); fault != CUDA_SUCCESS) {
      return fault;
    }
    if (const CUresult refused = permit_unsafe_call(); refused != CUDA_SUCCESS) {
      return refused;
    }
    const OperationPtr operation = recorded_by(*event);
    const bool done = operation == nullptr || operation->done();
    const CUresult fault = fault_of(*event);
    return fault != CUDA_SUCCESS ? fault : done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return with_event(handle, [](const std::shared_ptr<Event>& event) -> CUresult {
    if (event->captured.load(std::memory_order_acquire)) {
      return refuse_captured(*event);
    }
    if (const CUresult fault = fault_of(*event); gpuwire::cuda_abi::is_sticky(fault)) {
      return fault;
    }
    if (const CUresult refused = permit_unsafe_call(); refused != CUDA_SUCCESS) {
      return refused;
    }
    const auto context = event->context.lock();
    return context == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : context->synchronize(recorded_by(*event));
  });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) { return elapsed(milliseconds, from, to); }
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent from, CUevent to) {
  return elapsed(milliseconds, from, to);
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags) {
  return with_own_stream(stream_handle, [&](Context& context, Stream& stream) {
    return with_event(handle, [&](const std::shared_ptr<Event>& event) -> CUresult {
      const bool capturing = is_capturing(stream);
      if (flags > CU_EVENT_WAIT_EXTERNAL) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      if (flags == CU_EVENT_WAIT_EXTERNAL && !capturing) {
        return CUDA_ERROR_ILLEGAL_STATE;  // measured on driver 580
      }
      if (capturing || event->captured.load(std::memory_order_acquire)) {
        return capture_wait(context, context.stream(stream.handle), event, flags == CU_EVENT_WAIT_EXTERNAL);
      }
      if (const OperationPtr operation = recorded_by(*event); operation != nullptr && !operation->done()) {
        context.submit(stream, nullptr, {&operation, 1});
      }
      return CUDA_SUCCESS;
    });
  });
}

CUresult cuCtxRecordEvent(CUcontext handle, CUevent event_handle) {
  if (handle == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return with_event(event_handle, [&](const std::shared_ptr<Event>& event) -> CUresult {
    const auto slot = driver().contexts.find(handle);
    const auto context = slot == nullptr ? nullptr : slot->live();
    if (context == nullptr || event->context.lock() != context) {
      return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
    }
    const std::lock_guard lock(event->mutex);
    event->recorded = context->mark_everything();
    return context->fault();
  });
}

// All work that is submitted from now on waits: blocking streams through the legacy stream, and each other stream by
// itself.
CUresult cuCtxWaitEvent(CUcontext handle, CUevent event_handle) {
  if (handle == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return with_event(event_handle, [&](const std::shared_ptr<Event>& event) -> CUresult {
    const auto slot = driver().contexts.find(handle);
    const auto context = slot == nullptr ? nullptr : slot->live();
    if (context == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (const OperationPtr operation = recorded_by(*event); operation != nullptr && !operation->done()) {
      context->delay_everything(operation);
    }
    return context->fault();
  });
}
