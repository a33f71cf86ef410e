// Fills. A fill is posted, so the client checks its arguments. A fill without a stream argument waits if the program
// can access the memory, too, which holds for pinned and managed memory ("API synchronization behavior", Memset).
#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/copy/copy_rules.hpp"
#include "client_stub/driver/state/graph/graph_copies.hpp"
#include "client_stub/driver/state/stream/stream.hpp"

namespace gpuwire::client::hand {
namespace {

// The result of the check of a fill's memory.
struct Found {
  // The output of check_on_device().
  bool unknown = false;
  // The program can access the memory without a call.
  bool on_both_sides = false;
};

CUresult check_at(CUdeviceptr destination, size_t bytes, Found& found) {
  Place place = classify(destination, bytes);
  CUresult error = check_on_device(place, found.unknown);
  found.on_both_sides = place.on_both_sides();
  return error;
}

// Checks the memory of a fill. `width` is in elements, `height` in rows; one row needs no pitch.
CUresult check_fill(CUdeviceptr destination, size_t pitch_bytes, size_t element_bytes, size_t width, size_t height,
                    Found& found) {
  if (destination % element_bytes != 0 || width > SIZE_MAX / element_bytes) return CUDA_ERROR_INVALID_VALUE;
  size_t row_bytes = width * element_bytes;
  if (height == 1) return check_at(destination, row_bytes, found);
  if (pitch_bytes < row_bytes || pitch_bytes % element_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (height - 1 > (SIZE_MAX - row_bytes) / pitch_bytes) return CUDA_ERROR_INVALID_VALUE;
  return check_at(destination, (height - 1) * pitch_bytes + row_bytes, found);
}

template <class Send>
CUresult fill(const Caller& caller, CUdeviceptr destination, size_t pitch_bytes, size_t element_bytes, size_t width,
              size_t height, CUstream stream, bool per_thread, Form form, Send&& send) {
  CUresult error = CUDA_SUCCESS;
  const uint64_t wire_stream = resolve_stream(caller, stream, per_thread, error);
  if (error) return error;
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  Found found;
  if ((error = check_fill(destination, pitch_bytes, element_bytes, width, height, found))) {
    // A node of a graph may name any address (as measured on driver 580), so the driver decides.
    const StreamState* state = find_stream(caller.state, wire_stream);
    if (!state || state->capture.load(std::memory_order_relaxed) == 0) return error;
    found.unknown = true;
  }
  error = send();
  if (!error && found.unknown) error = await_verdict(caller);
  if (!error && form == Form::blocking && found.on_both_sides && capture_of(caller, wire_stream) == 0)
    error = forward::cuStreamSynchronize(caller, reinterpret_cast<CUstream>(wire_stream));
  return error;
}

// Fills a row of elements of the value's type. `kSend` is the forward function for such a fill.
template <auto kSend, class Value>
CUresult fill_linear(const Caller& caller, CUdeviceptr destination, Value value, size_t count, CUstream stream,
                     bool per_thread, Form form) {
  return fill(caller, destination, 0, sizeof value, count, 1, stream, per_thread, form,
              [&] { return kSend(caller, destination, value, count, stream, per_thread, nullptr); });
}

template <auto kSend, class Value>
CUresult fill_pitched(const Caller& caller, CUdeviceptr destination, size_t pitch_bytes, Value value, size_t width,
                      size_t height, CUstream stream, bool per_thread, Form form) {
  return fill(caller, destination, pitch_bytes, sizeof value, width, height, stream, per_thread, form, [&] {
    return kSend(caller, destination, pitch_bytes, value, width, height, stream, per_thread, nullptr);
  });
}

}  // namespace

CUresult cuMemsetD8_v2(const Caller& caller, CUdeviceptr dstDevice, unsigned char uc, size_t N, bool per_thread) {
  return fill_linear<forward::cuMemsetD8Async>(caller, dstDevice, uc, N, nullptr, per_thread, Form::blocking);
}

CUresult cuMemsetD8Async(const Caller& caller, CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream,
                         bool per_thread) {
  return fill_linear<forward::cuMemsetD8Async>(caller, dstDevice, uc, N, hStream, per_thread, Form::ordered);
}

CUresult cuMemsetD16_v2(const Caller& caller, CUdeviceptr dstDevice, unsigned short us, size_t N, bool per_thread) {
  return fill_linear<forward::cuMemsetD16Async>(caller, dstDevice, us, N, nullptr, per_thread, Form::blocking);
}

CUresult cuMemsetD16Async(const Caller& caller, CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream,
                          bool per_thread) {
  return fill_linear<forward::cuMemsetD16Async>(caller, dstDevice, us, N, hStream, per_thread, Form::ordered);
}

CUresult cuMemsetD32_v2(const Caller& caller, CUdeviceptr dstDevice, unsigned int ui, size_t N, bool per_thread) {
  return fill_linear<forward::cuMemsetD32Async>(caller, dstDevice, ui, N, nullptr, per_thread, Form::blocking);
}

CUresult cuMemsetD32Async(const Caller& caller, CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream,
                          bool per_thread) {
  return fill_linear<forward::cuMemsetD32Async>(caller, dstDevice, ui, N, hStream, per_thread, Form::ordered);
}

CUresult cuMemsetD2D8_v2(const Caller& caller, CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                         size_t Height, bool per_thread) {
  return fill_pitched<forward::cuMemsetD2D8Async>(caller, dstDevice, dstPitch, uc, Width, Height, nullptr, per_thread,
                                                  Form::blocking);
}

CUresult cuMemsetD2D8Async(const Caller& caller, CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                           size_t Height, CUstream hStream, bool per_thread) {
  return fill_pitched<forward::cuMemsetD2D8Async>(caller, dstDevice, dstPitch, uc, Width, Height, hStream, per_thread,
                                                  Form::ordered);
}

CUresult cuMemsetD2D16_v2(const Caller& caller, CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                          size_t Height, bool per_thread) {
  return fill_pitched<forward::cuMemsetD2D16Async>(caller, dstDevice, dstPitch, us, Width, Height, nullptr, per_thread,
                                                   Form::blocking);
}

CUresult cuMemsetD2D16Async(const Caller& caller, CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                            size_t Width, size_t Height, CUstream hStream, bool per_thread) {
  return fill_pitched<forward::cuMemsetD2D16Async>(caller, dstDevice, dstPitch, us, Width, Height, hStream, per_thread,
                                                   Form::ordered);
}

CUresult cuMemsetD2D32_v2(const Caller& caller, CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                          size_t Height, bool per_thread) {
  return fill_pitched<forward::cuMemsetD2D32Async>(caller, dstDevice, dstPitch, ui, Width, Height, nullptr, per_thread,
                                                   Form::blocking);
}

CUresult cuMemsetD2D32Async(const Caller& caller, CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                            size_t Height, CUstream hStream, bool per_thread) {
  return fill_pitched<forward::cuMemsetD2D32Async>(caller, dstDevice, dstPitch, ui, Width, Height, hStream, per_thread,
                                                   Form::ordered);
}

}  // namespace gpuwire::client::hand
