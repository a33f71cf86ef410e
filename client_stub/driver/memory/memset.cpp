// Fills. They are posted, so what is wrong with their arguments is found out here.
#include "client/forward.hpp"
#include "client/hand.hpp"
#include "client_stub/driver/copy/copy_rules.hpp"
#include "client_stub/driver/stream/stream.hpp"

namespace gpuwire::client::hand {
namespace {

CUresult check_at(CUdeviceptr destination, size_t bytes, bool& unknown) {
  Place place = classify(destination, bytes);
  return check_on_device(place, unknown);
}

// `width` and `height` in elements; a height of 1 needs no pitch.
CUresult check_fill(CUdeviceptr destination, size_t pitch_bytes, size_t element_bytes, size_t width, size_t height,
                    bool& unknown) {
  if (destination % element_bytes != 0 || width > SIZE_MAX / element_bytes) return CUDA_ERROR_INVALID_VALUE;
  size_t row_bytes = width * element_bytes;
  if (height == 1) return check_at(destination, row_bytes, unknown);
  if (pitch_bytes < row_bytes || pitch_bytes % element_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (height - 1 > (SIZE_MAX - row_bytes) / pitch_bytes) return CUDA_ERROR_INVALID_VALUE;
  return check_at(destination, (height - 1) * pitch_bytes + row_bytes, unknown);
}

template <class Send>
CUresult fill(CUdeviceptr destination, size_t pitch_bytes, size_t element_bytes, size_t width, size_t height,
              CUstream stream, bool per_thread, Send&& send) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  CUresult error = CUDA_SUCCESS;
  const uint64_t wire_stream = resolve_stream(caller, stream, per_thread, error);
  if (error) return error;
  if (width == 0 || height == 0) return leave(caller, CUDA_SUCCESS);
  bool unknown = false;
  if ((error = check_fill(destination, pitch_bytes, element_bytes, width, height, unknown))) {
    // A node of a graph may name any address (as measured on driver 580): the driver says what it makes of this one.
    const StreamState* state = find_stream(caller.state, wire_stream);
    if (!state || state->capture.load(std::memory_order_relaxed) == 0) return error;
    unknown = true;
  }
  error = send(caller);
  if (!error && unknown) error = await_verdict(caller);
  return leave(caller, error);
}

}  // namespace

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream, bool per_thread) {
  return fill(dstDevice, 0, 1, N, 1, hStream, per_thread, [&](const Caller& caller) {
    return forward::cuMemsetD8Async(caller, dstDevice, uc, N, hStream, per_thread);
  });
}

CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream, bool per_thread) {
  return fill(dstDevice, 0, 2, N, 1, hStream, per_thread, [&](const Caller& caller) {
    return forward::cuMemsetD16Async(caller, dstDevice, us, N, hStream, per_thread);
  });
}

CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream, bool per_thread) {
  return fill(dstDevice, 0, 4, N, 1, hStream, per_thread, [&](const Caller& caller) {
    return forward::cuMemsetD32Async(caller, dstDevice, ui, N, hStream, per_thread);
  });
}

CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height,
                           CUstream hStream, bool per_thread) {
  return fill(dstDevice, dstPitch, 1, Width, Height, hStream, per_thread, [&](const Caller& caller) {
    return forward::cuMemsetD2D8Async(caller, dstDevice, dstPitch, uc, Width, Height, hStream, per_thread);
  });
}

CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height,
                            CUstream hStream, bool per_thread) {
  return fill(dstDevice, dstPitch, 2, Width, Height, hStream, per_thread, [&](const Caller& caller) {
    return forward::cuMemsetD2D16Async(caller, dstDevice, dstPitch, us, Width, Height, hStream, per_thread);
  });
}

CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height,
                            CUstream hStream, bool per_thread) {
  return fill(dstDevice, dstPitch, 4, Width, Height, hStream, per_thread, [&](const Caller& caller) {
    return forward::cuMemsetD2D32Async(caller, dstDevice, dstPitch, ui, Width, Height, hStream, per_thread);
  });
}

}  // namespace gpuwire::client::hand
