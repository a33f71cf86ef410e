// The memory at the addresses of a call: looked up once, and passed to all steps of the call.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/state/call/caller.hpp"

namespace gpuwire::client {

enum class PlaceKind : uint8_t {
  // In no entry of the address map: ordinary memory of the program, or addresses that only the server's driver can
  // check.
  other,
  device,  // device memory, a variable, mapped or imported memory, memory of graphs
  managed,
  pinned,  // page-locked memory of the program
  region,  // pinned, and all of it is a host region: the server has it at the same address
};

// [address, address + bytes), and the entry of its first byte at the time of the look-up.
struct Place {
  uint64_t address = 0, bytes = 0;
  PlaceKind kind = PlaceKind::other;
  // The entry contains all of it.
  bool whole = false;
  // Its session too, unless the kind is `other`.
  AddressRange entry;

  Place() = default;
  Place(uint64_t address, uint64_t bytes) noexcept : address(address), bytes(bytes) {}

  // Returns whether a unified form treats the place as device memory.
  bool on_device() const noexcept { return kind == PlaceKind::device || kind == PlaceKind::managed; }
  bool in_managed() const noexcept { return kind == PlaceKind::managed && whole; }
  // Returns whether a copy into the place may end after the call.
  bool in_pinned() const noexcept { return (kind == PlaceKind::pinned || kind == PlaceKind::region) && whole; }
  // Returns whether the server has all of it, although it is memory of the program.
  bool on_both_sides() const noexcept { return in_managed() || kind == PlaceKind::region; }
  const void* memory() const noexcept { return reinterpret_cast<const void*>(address); }
};

Place classify(uint64_t address, uint64_t bytes) noexcept;
// Two places of the same length, with one look-up.
struct Places {
  Place destination, source;
};
Places classify(uint64_t destination, uint64_t source, uint64_t bytes) noexcept;
// Another range, which may be in the entry of a known place.
Place classify_near(const Place& known, uint64_t address, uint64_t bytes) noexcept;

// Prepares a place that the device is going to use. CUDA_ERROR_INVALID_VALUE for a null address, and for a range that
// begins in an allocation, variable or mapped range and leaves it. Sets `unknown` for addresses in no such range, for
// instance memory that a graph allocates. Pinned memory becomes a host region, if the device can reach it at all; the
// function sends the request and waits.
CUresult check_on_device(Place& place, bool& unknown) noexcept;

}  // namespace gpuwire::client
