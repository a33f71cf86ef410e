#include "server/software_device/driver/capture.hpp"

#include "server/software_device/driver/api.hpp"

namespace gpuwire::software_device {

bool is_capturing(Stream& stream) {
  const std::lock_guard lock(stream.capture_mutex);
  return stream.capture != nullptr;
}

}  // namespace gpuwire::software_device

using namespace gpuwire::software_device;

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return with_stream(handle, [&](Context&, Stream&) -> CUresult {
    if (status == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t*) { return cuStreamIsCapturing(handle, status); }
CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t*, CUgraph*, const CUgraphNode**, size_t*) {
  return cuStreamIsCapturing(handle, status);
}
CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t*, CUgraph*, const CUgraphNode**, const CUgraphEdgeData**, size_t*) {
  return cuStreamIsCapturing(handle, status);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}
