// Streams.
#include <algorithm>

#include "protocol/cuda_abi/sticky.hpp"
#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/stream/capture.hpp"
#include "server/software_device/driver/call/refusal.hpp"
#include "server/software_device/driver/stream/stream_work.hpp"

using namespace gpuwire::software_device;

namespace {

constexpr int kGreatestPriority = -5;

int in_range(int priority) { return std::clamp(priority, kGreatestPriority, 0); }

bool reserved_handle(CUstream handle) {
  return handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

CUresult create(CUstream* out, unsigned flags, int priority) {
  const auto unknown = [&] {
    return (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  };
  return with_arguments_first(unknown, [&](Context& context) -> CUresult {
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto stream = context.create_stream(flags, in_range(priority));
    if (auto slot = current_slot(); slot->green_of != nullptr) {
      stream->green = std::move(slot);
    }
    *out = stream->handle;
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult cuStreamCreate(CUstream* out, unsigned int flags) { return create(out, flags, 0); }
CUresult cuStreamCreateWithPriority(CUstream* out, unsigned int flags, int priority) {
  return create(out, flags, priority);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  return with_driver([&]() -> CUresult {
    if (reserved_handle(handle)) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    const auto stream = driver().streams.find(handle);
    const auto context = stream == nullptr ? nullptr : stream->context.lock();
    // The stream is destroyed even in a failed context, and the context's error is returned. A capture of the stream
    // then continues to affect other calls (measured on driver 580).
    if (stream != nullptr && is_capturing(*stream) && (context == nullptr || context->fault() == CUDA_SUCCESS)) {
      end_capture_with(*stream);
    }
    return context != nullptr && context->destroy_stream(stream) ? context->fault() : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult cuStreamDestroy(CUstream handle) { return cuStreamDestroy_v2(handle); }

CUresult cuStreamSynchronize(CUstream handle) {
  return with_own_stream(handle, [](Context& context, Stream& stream) -> CUresult {
    if (is_capturing(stream)) {
      return invalidate_capture(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    const CUresult refused = permit_unsafe_call();
    return refused != CUDA_SUCCESS ? refused : context.synchronize(stream);
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return with_own_stream(handle, [](Context& context, Stream& stream) -> CUresult {
    if (is_capturing(stream)) {
      return invalidate_capture(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if (const CUresult refused = permit_unsafe_call(); refused != CUDA_SUCCESS) {
      return refused;
    }
    const bool done = context.pending(stream).empty();
    const CUresult fault = context.fault();
    return fault != CUDA_SUCCESS ? fault : done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

// A question about a capturing stream's flags, number or device invalidates the capture, one about its priority or its
// context does not (measured on driver 580).
CUresult cuStreamGetFlags(CUstream handle, unsigned int* flags) {
  return with_asked_stream(handle, flags, [&](Context&, Stream& stream) -> CUresult {
    if (is_capturing(stream)) return invalidate_capture(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    *flags = stream.flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  return with_asked_stream(handle, priority, [&](Context&, Stream& stream) -> CUresult {
    *priority = stream.priority;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  return with_asked_stream(handle, id, [&](Context&, Stream& stream) -> CUresult {
    if (is_capturing(stream)) return invalidate_capture(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    *id = stream.id;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  return with_asked_stream(handle, device, [&](Context& context, Stream& stream) -> CUresult {
    if (is_capturing(stream)) return invalidate_capture(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    *device = context.device().ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* out) {
  return with_asked_stream(handle, out, [&](Context& context, Stream& stream) -> CUresult {
    const auto green = green_of(stream);
    *out = green == nullptr ? context.handle() : green->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* out, CUgreenCtx* green) {
  const void* const asked = out != nullptr ? static_cast<void*>(out) : green;
  return with_asked_stream(handle, asked, [&](Context& context, Stream& stream) -> CUresult {
    const auto slot = green_of(stream);
    if (out != nullptr) {  // a caller may request only one of the two (measured on driver 580)
      *out = context.handle();
    }
    if (green != nullptr) {
      *green = slot == nullptr ? nullptr : reinterpret_cast<CUgreenCtx>(slot->handle);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* user) {
  return with_stream_if(function != nullptr, handle, [&](Context& context, Stream& stream) {
    return enqueue(context, stream, HostWork{function, user});
  });
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* user, unsigned int flags) {
  const bool right = callback != nullptr && flags == 0;
  return with_stream_if(right, handle, [&](Context& context, Stream& stream) -> CUresult {
    if (is_capturing(stream)) {
      return invalidate_capture(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    context.submit_always(stream, [&context, handle, callback, user, alive = context.shared_from_this()] {
      callback(handle, context.fault(), user);
    });
    return CUDA_SUCCESS;
  });
}

// Host and device share managed memory here, so attaching it has no effect.
CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t, unsigned int) {
  return with_own_stream(handle, [&](Context&, Stream&) -> CUresult {
    if (const CUresult refused = permit_unsafe_call(); refused != CUDA_SUCCESS) {
      return refused;
    }
    const auto range = driver().memory.find(address);
    return range && range->kind == MemoryKind::managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue* value) {
  return with_stream(handle, [&](Context&, Stream& stream) -> CUresult {
    if (value == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *value = {};
    switch (attribute) {
      case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY: value->syncPolicy = CU_SYNC_POLICY_AUTO; return CUDA_SUCCESS;
      case CU_LAUNCH_ATTRIBUTE_PRIORITY: value->priority = stream.priority; return CUDA_SUCCESS;
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: return CUDA_SUCCESS;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  return with_own_stream(handle, [&](Context&, Stream& stream) -> CUresult {
    if (value == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attribute) {
      // Hints about waiting and caching do not change results.
      case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: return CUDA_SUCCESS;
      case CU_LAUNCH_ATTRIBUTE_PRIORITY: stream.priority = in_range(value->priority); return CUDA_SUCCESS;
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: return not_supported("a stream's memory synchronisation domain");
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuStreamCopyAttributes(CUstream target, CUstream source) {
  return with_own_stream(target, [&](Context& context, Stream& stream) -> CUresult {
    const auto from = context.stream(source);
    if (from == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    stream.priority = from->priority;
    return CUDA_SUCCESS;
  });
}
