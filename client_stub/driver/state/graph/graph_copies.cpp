#include "client_stub/driver/state/graph/graph_copies.hpp"

#include <optional>

#include "client/forward.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/graph/graph_memory.hpp"
#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/stream/capture.hpp"

namespace gpuwire::client {
namespace {

// Returns whether the server holds the pinned memory at its own address. Kernels of the same graph may use the memory
// as well, so its copies must use the kernels' bytes.
bool is_at_same_address(const Caller& caller, const Place& place, Shared shared, bool written,
                        std::vector<GraphUse>& uses) {
  if (place.kind == PlaceKind::region) {
    // Launches send the region's content of their time to the device.
    place.entry.server->pinned_pointers.scan_address(place.address);
    return true;
  }
  if (shared == Shared::as_it_is || place.kind != PlaceKind::pinned || !place.whole) return false;
  const AddressRange& entry = place.entry;
  if (entry.server->host_regions.mirror_for_graphs(caller, entry.base, entry.bytes)) return false;
  uses.push_back({nullptr, place.address, place.bytes, written, entry.base});
  return true;
}

// One range of the program's memory; `address` becomes the server's address of it.
CUresult to_place(const Caller& caller, const Place& place, bool written, uint64_t& address,
                  std::vector<GraphUse>& uses, Shared shared = Shared::with_kernels) {
  address = place.address;
  if (address == 0) return CUDA_ERROR_INVALID_VALUE;
  if (place.bytes == 0 || place.on_device() || is_at_same_address(caller, place, shared, written, uses))
    return CUDA_SUCCESS;
  GraphUse use;
  uint64_t at_server = 0;
  if (CUresult error = caller.server->graph_memory.use(caller, address, place.bytes, written, use, at_server))
    return error;
  address = at_server;
  uses.push_back(std::move(use));
  return CUDA_SUCCESS;
}

// One side of a CUDA_MEMCPY3D.
struct Side {
  CUmemorytype& type;
  CUdeviceptr& device;
  uint64_t host;  // the other pointer
  uint64_t x_bytes, y, z, pitch, height;
};

bool in_program(const Side& side) {
  return side.type == CU_MEMORYTYPE_HOST ||
         (side.type == CU_MEMORYTYPE_UNIFIED && !classify(side.device, 1).on_device());
}

// Where the copied bytes of a side lie, from its pointer on: [first, last).
struct Extent {
  uint64_t first = 0, last = 0;
};
std::optional<Extent> extent_of(const Side& side, const CUDA_MEMCPY3D& copy) {
  uint64_t row_end = side.x_bytes + copy.WidthInBytes, slice_end = side.y + copy.Height;
  // A single row needs no pitch, a single slice no height.
  uint64_t pitch = side.pitch ? side.pitch : row_end, height = side.height ? side.height : slice_end;
  if (pitch < row_end || (copy.Depth > 1 && height < slice_end)) return std::nullopt;
  uint64_t first = (side.z * height + side.y) * pitch + side.x_bytes;
  uint64_t last = ((side.z + copy.Depth - 1) * height + side.y + copy.Height - 1) * pitch + row_end;
  return Extent{first, last};
}

CUresult side_to_place(const Caller& caller, const Side& side, const CUDA_MEMCPY3D& copy, bool written,
                       uint64_t& pointer, std::vector<GraphUse>& uses, Shared shared) {
  const uint64_t base = side.type == CU_MEMORYTYPE_HOST ? side.host : side.device;
  const std::optional<Extent> extent = extent_of(side, copy);
  if (base == 0 || !extent) return CUDA_ERROR_INVALID_VALUE;
  const auto [first, last] = *extent;
  uint64_t address = 0;
  if (CUresult error = to_place(caller, classify(base + first, last - first), written, address, uses, shared))
    return error;
  pointer = address - first;
  side.type = CU_MEMORYTYPE_HOST;
  return CUDA_SUCCESS;
}

// If the program names device memory, its pointer may be the device pointer of pinned memory.
void note_device_side(const Caller& caller, const Side& side, const CUDA_MEMCPY3D& copy, bool written,
                      std::vector<GraphUse>& uses, Shared shared) {
  if (side.type != CU_MEMORYTYPE_DEVICE) return;
  const std::optional<Extent> extent = extent_of(side, copy);
  if (!extent) return;
  const Place place = classify(side.device + extent->first, extent->last - extent->first);
  const bool pinned = place.kind == PlaceKind::pinned || place.kind == PlaceKind::region;
  if (pinned && !is_at_same_address(caller, place, shared, written, uses))
    place.entry.server->pinned_pointers.scan_address(place.address);
}

}  // namespace

CUresult to_places(const Caller& caller, CUDA_MEMCPY3D& copy, std::vector<GraphUse>& uses, Shared shared) {
  if (copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) return CUDA_SUCCESS;
  Side source{copy.srcMemoryType, copy.srcDevice, reinterpret_cast<uint64_t>(copy.srcHost),
              copy.srcXInBytes,   copy.srcY,      copy.srcZ,
              copy.srcPitch,      copy.srcHeight};
  Side destination{copy.dstMemoryType, copy.dstDevice, reinterpret_cast<uint64_t>(copy.dstHost),
                   copy.dstXInBytes,   copy.dstY,      copy.dstZ,
                   copy.dstPitch,      copy.dstHeight};
  uint64_t pointer = 0;
  if (in_program(source)) {
    if (CUresult error = side_to_place(caller, source, copy, false, pointer, uses, shared)) return error;
    copy.srcHost = reinterpret_cast<const void*>(pointer);
  } else {
    note_device_side(caller, source, copy, false, uses, shared);
  }
  if (in_program(destination)) {
    if (CUresult error = side_to_place(caller, destination, copy, true, pointer, uses, shared)) return error;
    copy.dstHost = reinterpret_cast<void*>(pointer);
  } else {
    note_device_side(caller, destination, copy, true, uses, shared);
  }
  return CUDA_SUCCESS;
}

void to_program_memory(const Caller& caller, CUDA_MEMCPY3D& copy) noexcept {
  // The first byte that is copied lies in the block; the pointer itself may lie before it.
  auto home = [&](uint64_t pointer, uint64_t first) -> uint64_t {
    uint64_t found = caller.server->graph_memory.home(pointer + first);
    return found ? found - first : pointer;
  };
  uint64_t pitch = copy.srcPitch ? copy.srcPitch : copy.srcXInBytes + copy.WidthInBytes;
  uint64_t first = (copy.srcZ * copy.srcHeight + copy.srcY) * pitch + copy.srcXInBytes;
  if (copy.srcMemoryType == CU_MEMORYTYPE_HOST)
    copy.srcHost = reinterpret_cast<const void*>(home(reinterpret_cast<uint64_t>(copy.srcHost), first));
  if (copy.srcMemoryType == CU_MEMORYTYPE_UNIFIED) copy.srcDevice = home(copy.srcDevice, first);
  pitch = copy.dstPitch ? copy.dstPitch : copy.dstXInBytes + copy.WidthInBytes;
  first = (copy.dstZ * copy.dstHeight + copy.dstY) * pitch + copy.dstXInBytes;
  if (copy.dstMemoryType == CU_MEMORYTYPE_HOST)
    copy.dstHost = reinterpret_cast<void*>(home(reinterpret_cast<uint64_t>(copy.dstHost), first));
  if (copy.dstMemoryType == CU_MEMORYTYPE_UNIFIED) copy.dstDevice = home(copy.dstDevice, first);
}

uint64_t capture_of(const Caller& caller, uint64_t wire_stream) noexcept {
  // A stream of another context than the current one may capture.
  if (!caller.state || !caller.server->captures.any()) [[likely]]
    return 0;
  const StreamState* stream = find_stream(caller.state, wire_stream);
  return stream ? stream->capture.load(std::memory_order_acquire) : 0;
}

CUresult capture_linear(const Caller& caller, uint64_t capture, const Places& places, bool to_program,
                        bool from_program, uint64_t wire_stream) {
  std::vector<GraphUse> uses;
  uint64_t destination = places.destination.address, source = places.source.address;
  if (from_program) {
    if (CUresult error = to_place(caller, places.source, false, source, uses)) return error;
  }
  if (to_program) {
    if (CUresult error = to_place(caller, places.destination, true, destination, uses)) return error;
  }
  caller.server->graph_records.add(capture, 0, uses);
  return forward::cuMemcpyAsync(for_graph_copies(caller), destination, source, places.source.bytes,
                                reinterpret_cast<CUstream>(wire_stream));
}

CUresult capture_box(const Caller& caller, uint64_t capture, CUDA_MEMCPY3D copy, uint64_t wire_stream) {
  std::vector<GraphUse> uses;
  if (CUresult error = to_places(caller, copy, uses)) return error;
  caller.server->graph_records.add(capture, 0, uses);
  return forward::cuMemcpy3DAsync_v2(for_graph_copies(caller), &copy, reinterpret_cast<CUstream>(wire_stream));
}

}  // namespace gpuwire::client
