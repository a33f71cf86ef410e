// The memory at the addresses of a call: looked up once, and passed on to all steps of the call.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/state/call/caller.hpp"

namespace gpuwire::client {

enum class PlaceKind : uint8_t {
  // In no entry of the address map: ordinary memory of the program, or addresses that only the server's driver can
  // judge.
  other,
  device,  // device memory, a variable, mapped or imported memory, memory of graphs
  managed,
  pinned,  // page-locked memory of the program
  region,  // such, and all of it is a host region: the server has it at the same address
};

// [address, address + bytes), and the entry that holds its first byte, as of the time of the look-up.
struct Place {
  uint64_t address = 0, bytes = 0;
  PlaceKind kind = PlaceKind::other;
  bool whole = false;  // all of it is in the entry
  AddressRange entry;  // its session too, unless the kind is `other`

  Place() = default;
  Place(uint64_t address, uint64_t bytes) noexcept : address(address), bytes(bytes) {}

  // Does a unified form take it for the device's side?
  bool on_device() const noexcept { return kind == PlaceKind::device || kind == PlaceKind::managed; }
  bool in_managed() const noexcept { return kind == PlaceKind::managed && whole; }
  // So that a copy into it may end after the call?
  bool in_pinned() const noexcept { return (kind == PlaceKind::pinned || kind == PlaceKind::region) && whole; }
  // Does the server have all of it, although it is memory of the program?
  bool on_both_sides() const noexcept { return in_managed() || kind == PlaceKind::region; }
  const void* memory() const noexcept { return reinterpret_cast<const void*>(address); }
};

Place classify(uint64_t address, uint64_t bytes) noexcept;
// Two of the same length, with one look into the map.
struct Places {
  Place destination, source;
};
Places classify(uint64_t destination, uint64_t source, uint64_t bytes) noexcept;
// Another stretch, which may be in the entry of a place that is known.
Place classify_near(const Place& known, uint64_t address, uint64_t bytes) noexcept;

// For a place that the device is going to use. CUDA_ERROR_INVALID_VALUE for a null address, and for a range that begins
// in an allocation, variable or mapped range and leaves it. Sets `unknown` for addresses in no such range, for instance
// memory that a graph allocates. Pinned memory becomes a host region, if the device can reach it at all; the request is
// sent and waited for.
CUresult check_on_device(Place& place, bool& unknown) noexcept;

}  // namespace gpuwire::client
