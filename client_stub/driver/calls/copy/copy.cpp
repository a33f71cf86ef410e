// Linear copies that have, or may have, a side in the program's memory.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/array/array_shapes.hpp"
#include "client_stub/driver/state/call/account.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/copy/copy_rules.hpp"
#include "client_stub/driver/state/copy/late_copy.hpp"
#include "client_stub/driver/state/graph/graph_copies.hpp"
#include "client_stub/driver/state/memory/place.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/stream_call.hpp"
#include "client_stub/driver/state/stream/stream_wait.hpp"
#include "client_stub/driver/state/copy/transfer.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"

namespace gpuwire::client::hand {
namespace {

// A copy whose stream has been resolved.
struct Begun {
  const Caller& caller;
  uint64_t stream = 0;
  Form form = Form::blocking;
  CUresult error = CUDA_SUCCESS;

  // Returns the stream for the forward functions, which pass a resolved stream on unchanged.
  CUstream wire() const noexcept { return reinterpret_cast<CUstream>(stream); }
};

Begun begin(const Caller& caller, CUstream stream, bool per_thread, Form form) {
  Begun begun{.caller = caller, .form = form};
  begun.stream = resolve_stream(caller, stream, per_thread, begun.error);
  return begun;
}

// Returns whether the server has this memory, too, and makes the copy itself. For a host region the other side must be
// known, because in a copy by address the server's driver takes an address that is not the device's for memory of its
// own process.
bool at_server(const Place& memory, bool unknown) {
  return memory.in_managed() || (!unknown && memory.kind == PlaceKind::region);
}

// Returns whether a blocking copy from a host region is sent at once, as from memory that the device does not reach.
// Natively the copy reads its source when the stream reaches it, and returns without waiting for that. If no work in
// flight may write to memory of the program, the source already has its final content.
bool goes_at_once(const Begun& begun, const Places& places, bool unknown) {
  const auto& [destination, source] = places;
  const ServerSession& server = *begun.caller.server;
  return begun.form == Form::blocking && !unknown && source.kind == PlaceKind::region && source.in_pinned() &&
         source.bytes <= kCopyBesideWorkBytesMax && !destination.on_both_sides() &&
         begun.stream <= wire::kStreamLegacy && server.host_regions.all_shared() &&
         !server.posted_uploads.any_stream_beside() && server.posted_uploads.allowed(begun.caller, source.bytes) &&
         !begun.caller.state->is_green() && !in_host_callback();
}

// Waits for work that may write to memory of the program. Precondition: goes_at_once() holds, so all streams of the
// session wait for the NULL stream.
CUresult settle_host_writes(const ContextState& context) {
  return host_writes_under_way(context) ? synchronise_stream(CU_STREAM_LEGACY, false) : CUDA_SUCCESS;
}

// Waits for a copy that the server makes, if the form promises that the copy is done when the call returns.
CUresult finish_copy(const Begun& begun, CUresult result) {
  if (result || begun.form == Form::ordered) return result;
  return forward::cuStreamSynchronize(begun.caller, begun.wire());
}

// Copies by address between the device and memory that the server has, too. The server has both sides, and earlier work
// of the stream may still write to either. If the client copied the bytes, they would count as changes of the program,
// and be sent back.
CUresult copy_by_address(const Begun& begun, const Places& places, bool unknown) {
  if (places.source.on_both_sides()) {
    if (CUresult error = await_writers(begun.caller, begun.stream, places.source.bytes, begun.form)) return error;
  }
  CUresult result = forward::cuMemcpyAsync(begun.caller, places.destination.address, places.source.address,
                                           places.source.bytes, begun.wire());
  return !result && unknown ? await_verdict(begun.caller) : result;
}

// Copies by address to or from memory of the program that the server has, too. The blocking form is refused during a
// capture, as the rules of captures demand.
CUresult copy_to_both_sides(const Begun& begun, const Places& places, bool unknown) {
  if (begun.form == Form::blocking) {
    if (CUresult error = refuse_in_capture(begun.caller, begun.stream, true)) return error;
  }
  return finish_copy(begun, copy_by_address(begun, places, unknown));
}

CUresult captured(const Begun& begun, uint64_t capture, const Places& places, bool to_program, bool from_program) {
  return capture_linear(begun.caller, capture, places, to_program, from_program, begun.stream);
}

CUresult to_device(const Begun& begun, Places& places) {
  auto& [destination, source] = places;
  const size_t bytes = source.bytes;
  if (bytes == 0) return CUDA_SUCCESS;
  if (!source.address) return CUDA_ERROR_INVALID_VALUE;
  bool unknown = false;
  if (CUresult error = check_on_device(destination, unknown)) return error;
  const bool at_once = goes_at_once(begun, places, unknown);
  if (at_server(source, unknown) && !at_once) return copy_to_both_sides(begun, places, unknown);
  if (CUresult error = refuse_in_capture(begun.caller, begun.stream, begun.form == Form::blocking)) return error;
  if (uint64_t capture = capture_of(begun.caller, begun.stream)) return captured(begun, capture, places, false, true);
  if (CUresult error = before_work(begun.caller)) return error;
  bool done = false;
  CUresult ready = at_once ? settle_host_writes(*begun.caller.state)
                           : ready_source(begun.caller, source, begun.stream, begun.form, done, [&] {
                               return copy_late(begun.caller, destination.address, source, begun.stream);
                             });
  if (!ready && done && unknown) ready = await_verdict(begun.caller);
  if (ready || done) return ready;
  if (bytes <= kPointerTableBytesMax)
    begun.caller.server->pinned_pointers.scan_data({static_cast<const std::byte*>(source.memory()), bytes});
  if (!source.in_pinned()) note_pageable_memory();
  Source after = begun.form == Form::blocking ? Source::arrived : source.in_pinned() ? Source::stays : Source::free;
  CUresult result = send_to_device(begun.caller, destination.address, source.memory(), bytes, begun.stream, after,
                                   unknown || destination.on_both_sides());
  if (!result && unknown) result = await_verdict(begun.caller);
  // The program may read such memory as soon as a blocking copy has returned.
  if (destination.on_both_sides()) result = finish_copy(begun, result);
  return result;
}

CUresult from_device(const Begun& begun, Places& places) {
  auto& [destination, source] = places;
  if (source.bytes == 0) return CUDA_SUCCESS;
  if (!destination.address) return CUDA_ERROR_INVALID_VALUE;
  bool unknown = false;
  if (CUresult error = check_on_device(source, unknown)) return error;
  if (at_server(destination, unknown)) return copy_to_both_sides(begun, places, unknown);
  if (CUresult error = refuse_in_capture(begun.caller, begun.stream, begun.form == Form::blocking)) return error;
  if (uint64_t capture = capture_of(begun.caller, begun.stream)) return captured(begun, capture, places, true, false);
  if (CUresult error = before_work(begun.caller)) return error;
  void* memory = reinterpret_cast<void*>(destination.address);
  if (!destination.in_pinned()) note_pageable_memory();
  if (begun.form == Form::ordered && !unknown && destination.in_pinned()) {
    return fetch_later(begun.caller, memory, source.address, source.bytes, begun.stream);
  }
  return fetch_from_device(begun.caller, memory, source.address, source.bytes, begun.stream);
}

// Copies between two places in the program's memory. Only the program uses this memory, but the copy has its place in
// the order of the stream.
CUresult host_to_host(const Begun& begun, const Places& places) {
  const auto& [destination, source] = places;
  if (source.bytes == 0) return CUDA_SUCCESS;
  if (!destination.address || !source.address) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = refuse_in_capture(begun.caller, begun.stream, begun.form == Form::blocking)) return error;
  if (uint64_t capture = capture_of(begun.caller, begun.stream)) return captured(begun, capture, places, true, true);
  if (CUresult error = await_turn(begun.caller, begun.stream)) return error;
  std::memmove(reinterpret_cast<void*>(destination.address), source.memory(), source.bytes);
  return CUDA_SUCCESS;
}

CUresult on_device(const Begun& begun, Places& places) {
  auto& [destination, source] = places;
  if (source.bytes == 0) return CUDA_SUCCESS;
  bool unknown = false;
  if (CUresult error = check_on_device(destination, unknown)) return error;
  if (CUresult error = check_on_device(source, unknown)) return error;
  CUresult result;
  if ((!destination.on_device() || !source.on_device()) && !unknown) {
    result = copy_by_address(begun, places, false);
  } else {
    result =
        forward::cuMemcpyDtoDAsync_v2(begun.caller, destination.address, source.address, source.bytes, begun.wire());
    if (!result && unknown) result = await_verdict(begun.caller);
  }
  // The program may change or read such memory as soon as a blocking copy has returned.
  if (destination.on_both_sides() || source.on_both_sides()) result = finish_copy(begun, result);
  return result;
}

// Returns whether, as far as the client knows, the context has no fault and the memory is its device's.
bool plainly_of(const ContextState& context, const Place& place) {
  return !context_health(context) && place.on_device() && place.entry.device == context.device;
}

// Copies between two contexts. The copy is posted if the client knows that it is valid; otherwise the server's driver
// decides before the call returns.
CUresult between_contexts(const Begun& begun, Places& places, CUcontext to, CUcontext from) {
  auto& [destination, source] = places;
  const ContextState *to_state = find_context(to), *from_state = find_context(from);
  if (!to_state || !from_state) return CUDA_ERROR_INVALID_CONTEXT;
  bool unknown = !plainly_of(*to_state, destination) || !plainly_of(*from_state, source);
  if (source.bytes > 0) {
    if (CUresult error = check_on_device(destination, unknown)) return error;
    if (CUresult error = check_on_device(source, unknown)) return error;
  }
  CUresult result = forward::cuMemcpyPeerAsync(begun.caller, destination.address, to, source.address, from,
                                               source.bytes, begun.wire());
  if (!result && unknown) result = await_verdict(begun.caller);
  return result;
}

// The unified forms: the addresses determine the kind of each side (section "Unified Addressing").
CUresult unified(const Begun& begun, Places& places) {
  bool to = places.destination.on_device(), from = places.source.on_device();
  if (to && from) return on_device(begun, places);
  if (to) return to_device(begun, places);
  if (from) return from_device(begun, places);
  return host_to_host(begun, places);
}

// Resolves the stream of a copy, looks its addresses up, and calls `perform`.
template <class Copy>
CUresult copy(const Caller& caller, Copy&& perform, uint64_t destination, uint64_t source, size_t bytes,
              CUstream stream, bool per_thread, Form form) {
  Begun begun = begin(caller, stream, per_thread, form);
  if (begun.error) return begun.error;
  Places places = classify(destination, source, bytes);
  return perform(begun, places);
}

uint64_t address_of(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

// Copies through a buffer of the stub, because the session's reads and writes must not fault.
CUresult array_copy_of_managed(const Begun& begun, uint64_t array, size_t offset, void* managed, size_t bytes,
                               bool to_array) {
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

// Precondition: the copy is not empty, because an empty copy accepts any array. NULL is an invalid value, and not an
// invalid handle (as measured on driver 580).
CUresult check_array(CUarray array) {
  if (!array) return CUDA_ERROR_INVALID_VALUE;
  return known_handle(wire::HandleKind::array, reinterpret_cast<uint64_t>(array)) ? CUDA_SUCCESS
                                                                                  : CUDA_ERROR_INVALID_HANDLE;
}

// Copies between arrays, or between an array and device memory.
template <class Forward>
CUresult array_copy_on_device(const Caller& caller, size_t bytes, bool per_thread,
                              std::initializer_list<CUarray> arrays, Forward&& forward) {
  Begun begun = begin(caller, nullptr, per_thread, Form::blocking);
  if (begun.error) return begun.error;
  if (bytes == 0) return CUDA_SUCCESS;
  for (CUarray array : arrays) {
    if (CUresult error = check_array(array)) return error;
  }
  return forward();
}

CUresult array_copy(const Caller& caller, CUarray array, size_t offset, void* host, size_t bytes, CUstream stream,
                    bool per_thread, bool to_array, Form form) {
  Begun begun = begin(caller, stream, per_thread, form);
  if (begun.error) return begun.error;
  auto handle = reinterpret_cast<uint64_t>(array);
  if (bytes == 0) return CUDA_SUCCESS;
  if (CUresult error = check_array(array)) return error;
  if (!host) return CUDA_ERROR_INVALID_VALUE;
  // This check precedes the read of the program's memory: if the copy does not fit into the array, that memory may be
  // too short as well.
  if (CUresult error = check_in_array(begun.caller, array, offset, 0, 0, bytes, 1, 1)) return error;
  if (CUresult error = refuse_in_capture(begun.caller, begun.stream, form == Form::blocking)) return error;
  if (classify(address_of(host), bytes).in_managed()) {
    return array_copy_of_managed(begun, handle, offset, host, bytes, to_array);
  }
  CUDA_MEMCPY3D copy{};
  (to_array ? copy.dstMemoryType : copy.srcMemoryType) = CU_MEMORYTYPE_ARRAY;
  (to_array ? copy.srcMemoryType : copy.dstMemoryType) = CU_MEMORYTYPE_HOST;
  (to_array ? copy.dstArray : copy.srcArray) = array;
  (to_array ? copy.dstXInBytes : copy.srcXInBytes) = offset;
  copy.srcHost = to_array ? host : nullptr;
  copy.dstHost = to_array ? nullptr : host;
  copy.WidthInBytes = bytes;
  copy.Height = copy.Depth = 1;
  if (uint64_t capture = capture_of(begun.caller, begun.stream))
    return capture_box(begun.caller, capture, copy, begun.stream);
  // The server has such memory, too, and uses it when the stream reaches the copy.
  const Place place = classify(address_of(host), bytes);
  if (form == Form::ordered && place.kind == PlaceKind::region)
    return forward::cuMemcpy3DAsync_v2(begun.caller, &copy, begun.wire());
  if (CUresult error = before_work(begun.caller)) return error;
  if (to_array) {
    bool done = false;
    const CUresult ready = ready_source(begun.caller, place, begun.stream, form, done,
                                        [&] { return copy_late(begun.caller, copy, begun.stream); });
    if (ready || done) return ready;
  }
  DeviceBox device{.array = handle, .x_bytes = offset};
  HostBox memory{.base = static_cast<std::byte*>(host), .pitch_bytes = bytes, .height_rows = 1};
  BoxSize size{.width_bytes = bytes};
  if (to_array) return send_box(begun.caller, device, memory, size, begun.stream, form == Form::blocking);
  const bool later = form == Form::ordered && place.in_pinned();
  return later ? fetch_box_later(begun.caller, memory, device, size, begun.stream)
               : fetch_box(begun.caller, memory, device, size, begun.stream);
}

}  // namespace

CUresult cuMemcpyHtoD_v2(const Caller& caller, CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                         bool per_thread) {
  return copy(caller, to_device, dstDevice, address_of(srcHost), ByteCount, nullptr, per_thread, Form::blocking);
}

CUresult cuMemcpyHtoDAsync_v2(const Caller& caller, CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                              CUstream hStream, bool per_thread) {
  return copy(caller, to_device, dstDevice, address_of(srcHost), ByteCount, hStream, per_thread, Form::ordered);
}

CUresult cuMemcpyDtoH_v2(const Caller& caller, void* dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                         bool per_thread) {
  return copy(caller, from_device, address_of(dstHost), srcDevice, ByteCount, nullptr, per_thread, Form::blocking);
}

CUresult cuMemcpyDtoHAsync_v2(const Caller& caller, void* dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream, bool per_thread) {
  return copy(caller, from_device, address_of(dstHost), srcDevice, ByteCount, hStream, per_thread, Form::ordered);
}

CUresult cuMemcpyDtoD_v2(const Caller& caller, CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                         bool per_thread) {
  return copy(caller, on_device, dstDevice, srcDevice, ByteCount, nullptr, per_thread, Form::blocking);
}

CUresult cuMemcpyDtoDAsync_v2(const Caller& caller, CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream, bool per_thread) {
  return copy(caller, on_device, dstDevice, srcDevice, ByteCount, hStream, per_thread, Form::ordered);
}

CUresult cuMemcpy(const Caller& caller, CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, bool per_thread) {
  return copy(caller, unified, dst, src, ByteCount, nullptr, per_thread, Form::blocking);
}

CUresult cuMemcpyAsync(const Caller& caller, CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream,
                       bool per_thread) {
  return copy(caller, unified, dst, src, ByteCount, hStream, per_thread, Form::ordered);
}

CUresult cuMemcpyPeerAsync(const Caller& caller, CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount, CUstream hStream, bool per_thread) {
  auto perform = [&](const Begun& begun, Places& places) {
    return between_contexts(begun, places, dstContext, srcContext);
  };
  return copy(caller, perform, dstDevice, srcDevice, ByteCount, hStream, per_thread, Form::ordered);
}

CUresult cuMemcpyHtoA_v2(const Caller& caller, CUarray dstArray, size_t dstOffset, const void* srcHost,
                         size_t ByteCount, bool per_thread) {
  return array_copy(caller, dstArray, dstOffset, const_cast<void*>(srcHost), ByteCount, nullptr, per_thread, true,
                    Form::blocking);
}

CUresult cuMemcpyHtoAAsync_v2(const Caller& caller, CUarray dstArray, size_t dstOffset, const void* srcHost,
                              size_t ByteCount, CUstream hStream, bool per_thread) {
  return array_copy(caller, dstArray, dstOffset, const_cast<void*>(srcHost), ByteCount, hStream, per_thread, true,
                    Form::ordered);
}

CUresult cuMemcpyAtoH_v2(const Caller& caller, void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                         bool per_thread) {
  return array_copy(caller, srcArray, srcOffset, dstHost, ByteCount, nullptr, per_thread, false, Form::blocking);
}

CUresult cuMemcpyAtoHAsync_v2(const Caller& caller, void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                              CUstream hStream, bool per_thread) {
  return array_copy(caller, srcArray, srcOffset, dstHost, ByteCount, hStream, per_thread, false, Form::ordered);
}

CUresult cuMemcpyDtoA_v2(const Caller& caller, CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice,
                         size_t ByteCount, bool per_thread) {
  return array_copy_on_device(caller, ByteCount, per_thread, {dstArray}, [&] {
    return forward::cuMemcpyDtoA_v2(caller, dstArray, dstOffset, srcDevice, ByteCount, per_thread);
  });
}

CUresult cuMemcpyAtoD_v2(const Caller& caller, CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset,
                         size_t ByteCount, bool per_thread) {
  return array_copy_on_device(caller, ByteCount, per_thread, {srcArray}, [&] {
    return forward::cuMemcpyAtoD_v2(caller, dstDevice, srcArray, srcOffset, ByteCount, per_thread);
  });
}

CUresult cuMemcpyAtoA_v2(const Caller& caller, CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
                         size_t ByteCount, bool per_thread) {
  return array_copy_on_device(caller, ByteCount, per_thread, {dstArray, srcArray}, [&] {
    return forward::cuMemcpyAtoA_v2(caller, dstArray, dstOffset, srcArray, srcOffset, ByteCount, per_thread);
  });
}

}  // namespace gpuwire::client::hand
