// Linear copies that have, or may have, a side in the program's memory.
#include <cstring>
#include <optional>
#include <vector>

#include "client/forward.hpp"
#include "client/hand.hpp"
#include "client_stub/driver/address_map.hpp"
#include "client_stub/driver/copy_rules.hpp"
#include "client_stub/driver/graph_copies.hpp"
#include "client_stub/driver/server_session.hpp"
#include "client_stub/driver/transfer.hpp"

namespace gpuwire::client::hand {
namespace {

// What a copy does with its stream.
enum class Form : uint8_t {
  blocking,  // no stream argument
  ordered,   // ...Async
};

struct Begun {
  Caller caller;
  uint64_t stream = 0;
  CUresult error = CUDA_SUCCESS;
};

Begun begin(CUstream stream, bool per_thread) {
  Begun begun{.caller = enter(Needs::context)};
  begun.error = begun.caller.error;
  if (!begun.error) begun.stream = resolve_stream(begun.caller, stream, per_thread, begun.error);
  return begun;
}

// Managed memory in the place of host memory.
bool in_managed(const void* memory, size_t bytes) { return is_managed_memory(reinterpret_cast<uint64_t>(memory), bytes); }

// The server has this memory, too, so a copy is made there: what it brought here would count as the program's change,
// and travel back. By address the server's driver takes whatever is not the device's for memory of its own process: so
// not with a device address that is `unknown` here.
bool at_server(const Caller& caller, const void* memory, size_t bytes, bool unknown) {
  return in_managed(memory, bytes) ||
         (!unknown && caller.server->host_regions.holds(reinterpret_cast<uint64_t>(memory), bytes));
}

// Of what a program copies to the device so much may be a table of pointers.
constexpr size_t kPointerTableBytesMax = 1u << 20;

// Waits for a copy between two places at the server, where the form promises that it is done.
CUresult finish_copy(const Begun& begun, CUstream stream, bool per_thread, Form form, CUresult result) {
  if (result || form == Form::ordered) return result;
  return forward::cuStreamSynchronize(begun.caller, stream, per_thread);
}

// Between the device and a host region: the server has both, and earlier work of the stream may still write to either.
CUresult copy_by_address(const Begun& begun, CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream, bool per_thread,
                         bool unknown) {
  CUresult result = forward::cuMemcpyAsync(begun.caller, destination, source, bytes, stream, per_thread);
  return !result && unknown ? await_verdict(begun.caller) : result;
}

CUresult to_device(CUdeviceptr destination, const void* source, size_t bytes, CUstream stream, bool per_thread, Form form) {
  Begun begun = begin(stream, per_thread);
  if (begun.error) return begun.error;
  if (bytes == 0) return leave(begun.caller, CUDA_SUCCESS);
  if (!source) return CUDA_ERROR_INVALID_VALUE;
  bool unknown = false;
  if (CUresult error = check_device_range(destination, bytes, unknown)) return error;
  if (at_server(begun.caller, source, bytes, unknown)) {
    if (form == Form::blocking) {
      if (CUresult error = refuse_in_capture(begun.caller, begun.stream, true)) return error;
    }
    CUresult result = copy_by_address(begun, destination, reinterpret_cast<uint64_t>(source), bytes, stream, per_thread, unknown);
    return leave(begun.caller, finish_copy(begun, stream, per_thread, form, result));
  }
  if (CUresult error = refuse_in_capture(begun.caller, begun.stream, form == Form::blocking)) return error;
  if (uint64_t capture = capture_of(begun.caller, begun.stream)) {
    return leave(begun.caller, capture_linear(begun.caller, capture, destination, false, reinterpret_cast<uint64_t>(source), true, bytes, begun.stream));
  }
  if (CUresult error = before_work(begun.caller)) return error;
  if (CUresult error = settle_source(begun.caller, source, bytes, begun.stream)) return leave(begun.caller, error);
  if (bytes <= kPointerTableBytesMax) begun.caller.server->pinned_pointers.look_through_data({static_cast<const std::byte*>(source), bytes});
  Source after = form == Form::blocking ? Source::arrived : is_pinned(source, bytes) ? Source::stays : Source::free;
  CUresult result = send_to_device(begun.caller, destination, source, bytes, begun.stream, after);
  if (!result && unknown) result = await_verdict(begun.caller);
  // The program may look at managed memory as soon as a blocking copy has returned.
  if (is_managed_memory(destination, bytes)) result = finish_copy(begun, stream, per_thread, form, result);
  return leave(begun.caller, result);
}

CUresult from_device(void* destination, CUdeviceptr source, size_t bytes, CUstream stream, bool per_thread, Form form) {
  Begun begun = begin(stream, per_thread);
  if (begun.error) return begun.error;
  if (bytes == 0) return leave(begun.caller, CUDA_SUCCESS);
  if (!destination) return CUDA_ERROR_INVALID_VALUE;
  bool unknown = false;
  if (CUresult error = check_device_range(source, bytes, unknown)) return error;
  if (at_server(begun.caller, destination, bytes, unknown)) {
    if (form == Form::blocking) {
      if (CUresult error = refuse_in_capture(begun.caller, begun.stream, true)) return error;
    }
    CUresult result = copy_by_address(begun, reinterpret_cast<uint64_t>(destination), source, bytes, stream, per_thread, unknown);
    return leave(begun.caller, finish_copy(begun, stream, per_thread, form, result));
  }
  if (CUresult error = refuse_in_capture(begun.caller, begun.stream, form == Form::blocking)) return error;
  if (uint64_t capture = capture_of(begun.caller, begun.stream)) {
    return leave(begun.caller, capture_linear(begun.caller, capture, reinterpret_cast<uint64_t>(destination), true, source, false, bytes, begun.stream));
  }
  if (CUresult error = before_work(begun.caller)) return error;
  if (form == Form::ordered && !unknown && is_pinned(destination, bytes)) {
    return leave(begun.caller, fetch_later(begun.caller, destination, source, bytes, begun.stream));
  }
  return leave(begun.caller, fetch_from_device(begun.caller, destination, source, bytes, begun.stream));
}

// Nobody but the program touches this memory, but the copy takes its turn in the stream.
CUresult host_to_host(void* destination, const void* source, size_t bytes, CUstream stream, bool per_thread) {
  Begun begun = begin(stream, per_thread);
  if (begun.error) return begun.error;
  if (bytes == 0) return leave(begun.caller, CUDA_SUCCESS);
  if (!destination || !source) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = refuse_in_capture(begun.caller, begun.stream, false)) return error;
  if (uint64_t capture = capture_of(begun.caller, begun.stream)) {
    return leave(begun.caller, capture_linear(begun.caller, capture, reinterpret_cast<uint64_t>(destination), true, reinterpret_cast<uint64_t>(source),
                                              true, bytes, begun.stream));
  }
  if (CUresult error = forward::cuStreamSynchronize(begun.caller, stream, per_thread)) return leave(begun.caller, error);
  std::memmove(destination, source, bytes);
  return leave(begun.caller, CUDA_SUCCESS);
}

CUresult on_device(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream, bool per_thread) {
  Begun begun = begin(stream, per_thread);
  if (begun.error) return begun.error;
  if (bytes == 0) return leave(begun.caller, CUDA_SUCCESS);
  bool unknown = false;
  if (CUresult error = check_device_range(destination, bytes, unknown)) return error;
  if (CUresult error = check_device_range(source, bytes, unknown)) return error;
  if (!is_device_address(destination) || !is_device_address(source)) {
    if (!unknown) return leave(begun.caller, copy_by_address(begun, destination, source, bytes, stream, per_thread, false));
  }
  CUresult result = forward::cuMemcpyDtoDAsync_v2(begun.caller, destination, source, bytes, stream, per_thread);
  if (!result && unknown) result = await_verdict(begun.caller);
  return leave(begun.caller, result);
}

// The unified forms: which side is where follows from the addresses (section "Unified Addressing").
CUresult unified(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream, bool per_thread, Form form) {
  if (CUresult error = enter(Needs::context).error) return error;
  bool to = is_device_address(destination), from = is_device_address(source);
  if (to && from) {
    // The program may change or read managed memory as soon as a blocking copy has returned.
    bool wait = form == Form::blocking && (is_managed_memory(destination, bytes) || is_managed_memory(source, bytes));
    if (CUresult error = on_device(destination, source, bytes, stream, per_thread)) return error;
    return wait ? hand::cuStreamSynchronize(stream, per_thread) : CUDA_SUCCESS;
  }
  if (to) return to_device(destination, reinterpret_cast<const void*>(source), bytes, stream, per_thread, form);
  if (from) return from_device(reinterpret_cast<void*>(destination), source, bytes, stream, per_thread, form);
  return host_to_host(reinterpret_cast<void*>(destination), reinterpret_cast<const void*>(source), bytes, stream, per_thread);
}

// By way of memory of ours: what the session reads and writes must not fault.
CUresult array_copy_of_managed(const Begun& begun, uint64_t array, size_t offset, void* managed, size_t bytes, bool to_array) {
  if (CUresult error = before_work(begun.caller)) return error;
  std::vector<std::byte> ours(bytes);
  DeviceBox device{.array = array, .x_bytes = offset};
  HostBox memory{.base = ours.data(), .pitch_bytes = bytes, .height_rows = 1};
  BoxSize size{.width_bytes = bytes};
  if (to_array) {
    std::memcpy(ours.data(), managed, bytes);
    return send_box(begun.caller, device, memory, size, begun.stream, true);
  }
  CUresult result = fetch_box(begun.caller, memory, device, size, begun.stream);
  if (!result) std::memcpy(managed, ours.data(), bytes);
  return result;
}

CUresult array_copy(CUarray array, size_t offset, void* host, size_t bytes, CUstream stream, bool per_thread, bool to_array, Form form) {
  Begun begun = begin(stream, per_thread);
  if (begun.error) return begun.error;
  auto handle = reinterpret_cast<uint64_t>(array);
  if (!known_handle(wire::HandleKind::array, handle)) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == 0) return leave(begun.caller, CUDA_SUCCESS);
  if (!host) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = refuse_in_capture(begun.caller, begun.stream, form == Form::blocking)) return error;
  if (in_managed(host, bytes)) return leave(begun.caller, array_copy_of_managed(begun, handle, offset, host, bytes, to_array));
  if (uint64_t capture = capture_of(begun.caller, begun.stream)) {
    CUDA_MEMCPY3D copy{};
    (to_array ? copy.dstMemoryType : copy.srcMemoryType) = CU_MEMORYTYPE_ARRAY;
    (to_array ? copy.srcMemoryType : copy.dstMemoryType) = CU_MEMORYTYPE_HOST;
    (to_array ? copy.dstArray : copy.srcArray) = array;
    (to_array ? copy.dstXInBytes : copy.srcXInBytes) = offset;
    copy.srcHost = to_array ? host : nullptr;
    copy.dstHost = to_array ? nullptr : host;
    copy.WidthInBytes = bytes;
    copy.Height = copy.Depth = 1;
    return leave(begun.caller, capture_box(begun.caller, capture, copy, begun.stream));
  }
  if (CUresult error = before_work(begun.caller)) return error;
  DeviceBox device{.array = handle, .x_bytes = offset};
  HostBox memory{.base = static_cast<std::byte*>(host), .pitch_bytes = bytes, .height_rows = 1};
  BoxSize size{.width_bytes = bytes};
  CUresult result = to_array ? send_box(begun.caller, device, memory, size, begun.stream, form == Form::blocking)
                             : fetch_box(begun.caller, memory, device, size, begun.stream);
  return leave(begun.caller, result);
}

}  // namespace

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount, bool per_thread) {
  return to_device(dstDevice, srcHost, ByteCount, nullptr, per_thread, Form::blocking);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount, CUstream hStream, bool per_thread) {
  return to_device(dstDevice, srcHost, ByteCount, hStream, per_thread, Form::ordered);
}

CUresult cuMemcpyDtoH_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount, bool per_thread) {
  return from_device(dstHost, srcDevice, ByteCount, nullptr, per_thread, Form::blocking);
}

CUresult cuMemcpyDtoHAsync_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream, bool per_thread) {
  return from_device(dstHost, srcDevice, ByteCount, hStream, per_thread, Form::ordered);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream, bool per_thread) {
  return on_device(dstDevice, srcDevice, ByteCount, hStream, per_thread);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, bool per_thread) {
  return unified(dst, src, ByteCount, nullptr, per_thread, Form::blocking);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream, bool per_thread) {
  return unified(dst, src, ByteCount, hStream, per_thread, Form::ordered);
}

CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount, bool per_thread) {
  return array_copy(dstArray, dstOffset, const_cast<void*>(srcHost), ByteCount, nullptr, per_thread, true, Form::blocking);
}

CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount, CUstream hStream, bool per_thread) {
  return array_copy(dstArray, dstOffset, const_cast<void*>(srcHost), ByteCount, hStream, per_thread, true, Form::ordered);
}

CUresult cuMemcpyAtoH_v2(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, bool per_thread) {
  return array_copy(srcArray, srcOffset, dstHost, ByteCount, nullptr, per_thread, false, Form::blocking);
}

CUresult cuMemcpyAtoHAsync_v2(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream, bool per_thread) {
  return array_copy(srcArray, srcOffset, dstHost, ByteCount, hStream, per_thread, false, Form::ordered);
}

}  // namespace gpuwire::client::hand
