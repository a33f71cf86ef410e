#include "client_stub/driver/state/memory/place.hpp"

#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/memory/cached_memory.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"

namespace gpuwire::client {
namespace {

// Completes the place from its entry.
void judge(Place& place) noexcept {
  const AddressRange& entry = place.entry;
  place.whole = entry.contains(place.address, place.bytes);
  if (!is_host(entry.kind)) {
    place.kind = is_managed(entry.kind) ? PlaceKind::managed : PlaceKind::device;
    return;
  }
  bool region = place.whole && entry.server && entry.server->host_regions.holds(place.address, place.bytes);
  place.kind = region ? PlaceKind::region : PlaceKind::pinned;
}

}  // namespace

Place classify(uint64_t address, uint64_t bytes) noexcept {
  Place place(address, bytes);
  if (address_map().find(address, place.entry)) judge(place);
  return place;
}

Places classify(uint64_t destination, uint64_t source, uint64_t bytes) noexcept {
  Places places{Place(destination, bytes), Place(source, bytes)};
  const auto found = address_map().find_both(destination, places.destination.entry, source, places.source.entry);
  if (found.first) judge(places.destination);
  if (found.second) judge(places.source);
  return places;
}

Place classify_near(const Place& known, uint64_t address, uint64_t bytes) noexcept {
  if (known.kind == PlaceKind::other || !known.entry.contains(address, 1)) return classify(address, bytes);
  Place place(address, bytes);
  place.entry = known.entry;
  judge(place);
  return place;
}

CUresult check_on_device(Place& place, bool& unknown) noexcept {
  if (place.address == 0) return CUDA_ERROR_INVALID_VALUE;
  // The server's driver must refuse the address of a freed block.
  if (place.kind == PlaceKind::other && process()) {
    ServerSession& server = *process()->server;
    server.cached_memory.scan_address(place.address);
    // The server delays a free until functions of the program have returned; natively, cuMemFree itself waits for them.
    if (!in_host_callback()) server.host_callbacks.await_none();
  }
  // Only the server's driver knows the size of imported memory.
  if (place.kind == PlaceKind::other || place.entry.kind == RangeKind::imported) {
    unknown = true;
    return CUDA_SUCCESS;
  }
  if (!place.whole) return CUDA_ERROR_INVALID_VALUE;
  if (place.kind != PlaceKind::pinned) return CUDA_SUCCESS;
  // If the server has no memory for the region, or the tenant's bound is reached, the call fails like a driver without
  // memory.
  if (CUresult error = reach_pinned(place.entry))
    return error == CUDA_ERROR_OUT_OF_MEMORY ? error : CUDA_ERROR_INVALID_VALUE;
  place.kind = PlaceKind::region;
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::client
