// Memsets.
#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/copy/copy_request.hpp"
#include "server/software_device/driver/stream/capture.hpp"
#include "server/software_device/driver/stream/stream_work.hpp"

using namespace gpuwire::software_device;

namespace {

CUresult fill(FillWork work, CUstream handle, bool wait) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    if (const CUresult forbidden = permit_work(stream); forbidden != CUDA_SUCCESS) {
      return forbidden;
    }
    if (work.width == 0 || work.height == 0) {
      return CUDA_SUCCESS;
    }
    if (const CUresult result = check_fill(work); result != CUDA_SUCCESS) {
      if (wait || !is_capturing(stream)) {
        return result;
      }
      work.checked = false;  // a node may have any address (measured on driver 580)
    }
    return wait ? enqueue_and_wait(context, stream, work) : enqueue(context, stream, work);
  });
}

FillWork line(CUdeviceptr target, uint32_t value, uint32_t element_bytes, size_t count) {
  return {.target = target, .value = value, .element_bytes = element_bytes, .width = count};
}

FillWork rectangle(CUdeviceptr target, size_t pitch, uint32_t value, uint32_t element_bytes, size_t width,
                   size_t height) {
  return {.target = target,
          .value = value,
          .element_bytes = element_bytes,
          .width = width,
          .height = height,
          .pitch = pitch};
}

}  // namespace

CUresult cuMemsetD8_v2(CUdeviceptr target, unsigned char value, size_t count) {
  return fill(line(target, value, 1, count), nullptr, true);
}
CUresult cuMemsetD16_v2(CUdeviceptr target, unsigned short value, size_t count) {
  return fill(line(target, value, 2, count), nullptr, true);
}
CUresult cuMemsetD32_v2(CUdeviceptr target, unsigned int value, size_t count) {
  return fill(line(target, value, 4, count), nullptr, true);
}

CUresult cuMemsetD2D8_v2(CUdeviceptr target, size_t pitch, unsigned char value, size_t width, size_t height) {
  return fill(rectangle(target, pitch, value, 1, width, height), nullptr, true);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr target, size_t pitch, unsigned short value, size_t width, size_t height) {
  return fill(rectangle(target, pitch, value, 2, width, height), nullptr, true);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr target, size_t pitch, unsigned int value, size_t width, size_t height) {
  return fill(rectangle(target, pitch, value, 4, width, height), nullptr, true);
}

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, CUstream stream) {
  return fill(line(target, value, 1, count), stream, false);
}
CUresult cuMemsetD16Async(CUdeviceptr target, unsigned short value, size_t count, CUstream stream) {
  return fill(line(target, value, 2, count), stream, false);
}
CUresult cuMemsetD32Async(CUdeviceptr target, unsigned int value, size_t count, CUstream stream) {
  return fill(line(target, value, 4, count), stream, false);
}

CUresult cuMemsetD2D8Async(CUdeviceptr target, size_t pitch, unsigned char value, size_t width, size_t height,
                           CUstream stream) {
  return fill(rectangle(target, pitch, value, 1, width, height), stream, false);
}
CUresult cuMemsetD2D16Async(CUdeviceptr target, size_t pitch, unsigned short value, size_t width, size_t height,
                            CUstream stream) {
  return fill(rectangle(target, pitch, value, 2, width, height), stream, false);
}
CUresult cuMemsetD2D32Async(CUdeviceptr target, size_t pitch, unsigned int value, size_t width, size_t height,
                            CUstream stream) {
  return fill(rectangle(target, pitch, value, 4, width, height), stream, false);
}
