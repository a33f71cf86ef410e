// Copies of rows and boxes: cuMemcpy2D and cuMemcpy3D in all their forms. All of them are converted to
// three-dimensional copies.
#include <bit>
#include <cstddef>
#include <cstring>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/array/array_shapes.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/copy/copy_rules.hpp"
#include "client_stub/driver/state/copy/late_copy.hpp"
#include "client_stub/driver/state/graph/graph_copies.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/memory/place.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/copy/transfer.hpp"

namespace gpuwire::client {
namespace {

enum class Side : uint8_t { host, device, array };

struct BoxEnd {
  Side side = Side::host;
  HostBox host;
  DeviceBox device;
};

struct BoxCopy {
  BoxEnd source, destination;
  BoxSize size;
  // An end is memory that the program and the server have: managed memory or a host region.
  bool mirrored = false;
  // An end is at addresses that are not in the client's map.
  bool unknown = false;
  // An end is an array, whose extent the server knows.
  bool array = false;
};

// One end of a copy, as CUDA_MEMCPY3D describes it.
struct EndFields {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  CUarray array;
  size_t x_bytes, y, z, lod, pitch, height;
};

CUresult read_end(const EndFields& fields, const BoxSize& size, BoxEnd& out, BoxCopy& copy) {
  CUmemorytype type = fields.type;
  const uint64_t address = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(fields.host) : fields.device;
  const bool by_address = type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
  const Place begin = by_address ? classify(address, 1) : Place();
  if (type == CU_MEMORYTYPE_UNIFIED) type = begin.on_device() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  // The server has such memory, too, so the memory type that the program names does not matter.
  if (type == CU_MEMORYTYPE_HOST && begin.on_both_sides()) type = CU_MEMORYTYPE_DEVICE;
  if (type == CU_MEMORYTYPE_ARRAY) {
    auto handle = reinterpret_cast<uint64_t>(fields.array);
    if (!handle) return CUDA_ERROR_INVALID_VALUE;  // as measured on driver 580
    if (!known_handle(wire::HandleKind::array, handle)) return CUDA_ERROR_INVALID_HANDLE;
    out.side = Side::array;
    out.device = {
        .array = handle, .x_bytes = fields.x_bytes, .y = fields.y, .z = fields.z, .lod = uint32_t(fields.lod)};
    return CUDA_SUCCESS;
  }
  if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  uint64_t row_end = fields.x_bytes + size.width_bytes, slice_end = fields.y + size.height;
  // A single row needs no pitch, a single slice no height.
  uint64_t pitch = fields.pitch ? fields.pitch : row_end, height = fields.height ? fields.height : slice_end;
  if (pitch < row_end || (size.depth > 1 && height < slice_end)) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEMORYTYPE_HOST) {
    if (!address) return CUDA_ERROR_INVALID_VALUE;
    out.side = Side::host;
    out.host = {reinterpret_cast<std::byte*>(address), pitch, height, fields.x_bytes, fields.y, fields.z};
    return CUDA_SUCCESS;
  }
  out.side = Side::device;
  out.device = {.device = address,
                .pitch_bytes = pitch,
                .height_rows = height,
                .x_bytes = fields.x_bytes,
                .y = fields.y,
                .z = fields.z};
  uint64_t first = ((fields.z * height) + fields.y) * pitch + fields.x_bytes;
  uint64_t last = (((fields.z + size.depth - 1) * height) + fields.y + size.height - 1) * pitch + row_end;
  Place box = classify_near(begin, address + first, last - first);
  CUresult error = check_on_device(box, copy.unknown);
  copy.mirrored |= begin.on_both_sides() || box.kind == PlaceKind::region;
  return error;
}

// Reads a CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER. The contexts of the latter are not read, because the addresses determine
// them (unified addressing).
template <class Copy3D>
CUresult read_copy(const Copy3D& from, BoxCopy& out) {
  out.size = {from.WidthInBytes, from.Height, from.Depth};
  if (out.size.bytes() == 0) return CUDA_SUCCESS;
  EndFields source{from.srcMemoryType, from.srcHost, from.srcDevice, from.srcArray, from.srcXInBytes,
                   from.srcY,          from.srcZ,    from.srcLOD,    from.srcPitch, from.srcHeight};
  EndFields destination{from.dstMemoryType, from.dstHost, from.dstDevice, from.dstArray, from.dstXInBytes,
                        from.dstY,          from.dstZ,    from.dstLOD,    from.dstPitch, from.dstHeight};
  if (CUresult error = read_end(source, out.size, out.source, out)) return error;
  if (CUresult error = read_end(destination, out.size, out.destination, out)) return error;
  out.array = out.source.side == Side::array || out.destination.side == Side::array;
  return CUDA_SUCCESS;
}

CUDA_MEMCPY3D as_3d(const CUDA_MEMCPY2D& from) {
  CUDA_MEMCPY3D out{};
  out.srcXInBytes = from.srcXInBytes;
  out.srcY = from.srcY;
  out.srcMemoryType = from.srcMemoryType;
  out.srcHost = from.srcHost;
  out.srcDevice = from.srcDevice;
  out.srcArray = from.srcArray;
  out.srcPitch = from.srcPitch;
  out.dstXInBytes = from.dstXInBytes;
  out.dstY = from.dstY;
  out.dstMemoryType = from.dstMemoryType;
  out.dstHost = from.dstHost;
  out.dstDevice = from.dstDevice;
  out.dstArray = from.dstArray;
  out.dstPitch = from.dstPitch;
  out.WidthInBytes = from.WidthInBytes;
  out.Height = from.Height;
  out.Depth = 1;
  return out;
}

CUresult check_in_arrays(const Caller& caller, const BoxCopy& copy) {
  for (const BoxEnd* end : {&copy.source, &copy.destination}) {
    if (end->side != Side::array) continue;
    const DeviceBox& box = end->device;
    CUresult error = check_in_array(caller, reinterpret_cast<CUarray>(box.array), box.x_bytes, box.y, box.z,
                                    copy.size.width_bytes, copy.size.height, copy.size.depth);
    if (error) return error;
  }
  return CUDA_SUCCESS;
}

// Copies between device memory and arrays, in one call.
CUresult copy_on_device(const Caller& caller, const BoxCopy& copy, CUstream stream, bool per_thread) {
  CUDA_MEMCPY3D out{};
  const DeviceBox &from = copy.source.device, &to = copy.destination.device;
  bool from_array = copy.source.side == Side::array, to_array = copy.destination.side == Side::array;
  out.srcMemoryType = from_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
  out.srcArray = reinterpret_cast<CUarray>(from.array);
  out.srcDevice = from.device;
  out.srcXInBytes = from.x_bytes;
  out.srcY = from.y;
  out.srcZ = from.z;
  out.srcLOD = from.lod;
  out.srcPitch = from.pitch_bytes;
  out.srcHeight = from.height_rows;
  out.dstMemoryType = to_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
  out.dstArray = reinterpret_cast<CUarray>(to.array);
  out.dstDevice = to.device;
  out.dstXInBytes = to.x_bytes;
  out.dstY = to.y;
  out.dstZ = to.z;
  out.dstLOD = to.lod;
  out.dstPitch = to.pitch_bytes;
  out.dstHeight = to.height_rows;
  out.WidthInBytes = copy.size.width_bytes;
  out.Height = copy.size.height;
  out.Depth = copy.size.depth;
  return forward::cuMemcpy3DAsync_v2(caller, &out, stream, per_thread);
}

CUresult copy_in_host(const Caller& caller, const BoxCopy& copy, uint64_t wire_stream) {
  if (CUresult error = await_turn(caller, wire_stream)) return error;
  for (uint64_t slice = 0; slice < copy.size.depth; ++slice) {
    for (uint64_t row = 0; row < copy.size.height; ++row) {
      std::memmove(copy.destination.host.row(row, slice), copy.source.host.row(row, slice), copy.size.width_bytes);
    }
  }
  return CUDA_SUCCESS;
}

// Returns the place from the first byte of the box to its last.
Place around(const HostBox& box, const BoxSize& size) {
  std::byte* first = box.row(0, 0);
  std::byte* last = box.row(size.height - 1, size.depth - 1) + size.width_bytes;
  return classify(reinterpret_cast<uint64_t>(first), size_t(last - first));
}

// Scans the rows for pointers to pinned memory, which any data may contain.
void scan_for_pointers(const Caller& caller, const BoxCopy& copy) noexcept {
  PinnedPointers& pinned = caller.server->pinned_pointers;
  if (!pinned.any() || copy.size.bytes() > kPointerTableBytesMax) return;
  for (uint64_t slice = 0; slice < copy.size.depth; ++slice) {
    for (uint64_t row = 0; row < copy.size.height; ++row)
      pinned.scan_data({copy.source.host.row(row, slice), copy.size.width_bytes});
  }
}

// Performs the copy. `copy_late` posts the same copy for the time when the stream reaches it.
template <class CopyLate>
CUresult perform(const Caller& caller, const BoxCopy& copy, uint64_t wire_stream, CUstream stream, bool per_thread,
                 bool blocking, CopyLate&& copy_late) {
  CUresult error = CUDA_SUCCESS;
  if (copy.size.bytes() == 0) return CUDA_SUCCESS;
  bool from_host = copy.source.side == Side::host, to_host = copy.destination.side == Side::host;
  if (!from_host && !to_host) return copy_on_device(caller, copy, stream, per_thread);
  if ((error = refuse_in_capture(caller, wire_stream, blocking))) return error;
  if (from_host && to_host) return copy_in_host(caller, copy, wire_stream);
  if ((error = before_work(caller))) return error;
  if (to_host) {
    const HostBox& to = copy.destination.host;
    const bool later = !blocking && !copy.unknown && around(to, copy.size).in_pinned();
    return later ? fetch_box_later(caller, to, copy.source.device, copy.size, wire_stream)
                 : fetch_box(caller, to, copy.source.device, copy.size, wire_stream);
  }
  bool done = false;
  error = ready_source(caller, around(copy.source.host, copy.size), wire_stream,
                       blocking ? Form::blocking : Form::ordered, done, copy_late);
  if (error || done) return error;
  if (copy.destination.side == Side::device) scan_for_pointers(caller, copy);
  return send_box(caller, copy.destination.device, copy.source.host, copy.size, wire_stream, blocking);
}

CUDA_MEMCPY3D as_plain(const CUDA_MEMCPY3D& copy) { return copy; }
// The two structures differ only in the contexts, which lie in place of reserved members. The contexts are omitted,
// because the addresses determine them (unified addressing).
CUDA_MEMCPY3D as_plain(const CUDA_MEMCPY3D_PEER& from) {
  static_assert(offsetof(CUDA_MEMCPY3D, reserved0) == offsetof(CUDA_MEMCPY3D_PEER, srcContext) &&
                offsetof(CUDA_MEMCPY3D, reserved1) == offsetof(CUDA_MEMCPY3D_PEER, dstContext) &&
                offsetof(CUDA_MEMCPY3D, Depth) == offsetof(CUDA_MEMCPY3D_PEER, Depth));
  auto out = std::bit_cast<CUDA_MEMCPY3D>(from);
  out.reserved0 = out.reserved1 = nullptr;
  return out;
}

// Adds the copy to the graph into which the stream is captured, if it is. Returns whether it is; `result` is then the
// call's.
template <class Copy3D>
bool captured(const Caller& caller, const Copy3D& request, uint64_t wire_stream, bool blocking, CUresult& result) {
  uint64_t capture = blocking ? 0 : capture_of(caller, wire_stream);
  if (capture) result = capture_box(caller, capture, as_plain(request), wire_stream);
  return capture != 0;
}

template <class Copy3D>
CUresult copy_box(const Caller& caller, const Copy3D& request, CUstream stream, bool per_thread, bool blocking) {
  // The stream is checked before the arguments (as measured on driver 580).
  CUresult result = CUDA_SUCCESS;
  uint64_t wire_stream = resolve_stream(caller, stream, per_thread, result);
  if (result) return result;
  BoxCopy copy;
  if (CUresult error = read_copy(request, copy)) return error;
  if (copy.array && !blocking) {
    if (CUresult error = check_in_arrays(caller, copy)) return error;
  }
  if (copy.mirrored && blocking) {
    if (CUresult error = await_writers(caller, wire_stream, copy.size.bytes(), Form::blocking)) return error;
  }
  if (!captured(caller, request, wire_stream, blocking, result))
    result = perform(caller, copy, wire_stream, stream, per_thread, blocking,
                     [&] { return copy_late(caller, as_plain(request), wire_stream); });
  // The program may change or read such memory as soon as a blocking copy has returned.
  if (!result && blocking && copy.mirrored) result = forward::cuStreamSynchronize(caller, stream, per_thread);
  if (!result && (copy.unknown || (copy.array && blocking))) result = await_verdict(caller);
  return result;
}

}  // namespace

namespace hand {

CUresult cuMemcpy2D_v2(const Caller& caller, const CUDA_MEMCPY2D* pCopy, bool per_thread) {
  return copy_box(caller, as_3d(*pCopy), nullptr, per_thread, true);
}

// The driver's two forms differ in the pitches that they accept. The client refuses no pitch, so it treats them alike.
CUresult cuMemcpy2DUnaligned_v2(const Caller& caller, const CUDA_MEMCPY2D* pCopy, bool per_thread) {
  return hand::cuMemcpy2D_v2(caller, pCopy, per_thread);
}

CUresult cuMemcpy2DAsync_v2(const Caller& caller, const CUDA_MEMCPY2D* pCopy, CUstream hStream, bool per_thread) {
  return copy_box(caller, as_3d(*pCopy), hStream, per_thread, false);
}

CUresult cuMemcpy3D_v2(const Caller& caller, const CUDA_MEMCPY3D* pCopy, bool per_thread) {
  return copy_box(caller, *pCopy, nullptr, per_thread, true);
}

CUresult cuMemcpy3DAsync_v2(const Caller& caller, const CUDA_MEMCPY3D* pCopy, CUstream hStream, bool per_thread) {
  return copy_box(caller, *pCopy, hStream, per_thread, false);
}

CUresult cuMemcpy3DPeer(const Caller& caller, const CUDA_MEMCPY3D_PEER* pCopy, bool per_thread) {
  return copy_box(caller, *pCopy, nullptr, per_thread, true);
}

CUresult cuMemcpy3DPeerAsync(const Caller& caller, const CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream, bool per_thread) {
  return copy_box(caller, *pCopy, hStream, per_thread, false);
}

}  // namespace hand
}  // namespace gpuwire::client
