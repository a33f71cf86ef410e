// Converts the addresses of a warp's lanes to host pointers, with all checks of a device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "server/software_device/execution/address_spaces.hpp"
#include "server/software_device/execution/lanes.hpp"
#include "server/software_device/execution/running_launch.hpp"
#include "server/software_device/ptx/types.hpp"

namespace gpuwire::software_device {

enum class AccessKind : uint8_t { load, store, atomic };

// Resolves one address of any space. Faults and returns nullptr if the lane may not access [address, address + bytes).
uint8_t* resolve_lane(Warp& w, const Op& op, unsigned lane, ptx::Space space, uint64_t address, uint32_t bytes,
                      AccessKind kind);

inline uint32_t range_slot(const Op& op) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(&op) / sizeof(Op)) % Executor::kCachedRanges;
}

// Returns the host pointers of the active lanes. A is the address register's type. Returns false after a fault.
template <ptx::Space S, class A>
inline bool resolve(Warp& w, const Op& op, uint32_t mask, const A* address, uint32_t bytes, AccessKind kind,
                    uint8_t* (&pointer)[kLanes]) {
  const A offset = static_cast<A>(op.immediate);
  A low = ~A{0}, high = 0, bits = 0;
  A at[kLanes];
  if (mask == kAllLanes) {
    for (unsigned i = 0; i < kLanes; ++i) {
      at[i] = address[i] + offset;
      low = std::min(low, at[i]);
      high = std::max(high, at[i]);
      bits |= at[i];
    }
  } else {
    each_lane(mask, [&](unsigned i) {
      at[i] = address[i] + offset;
      low = std::min(low, at[i]);
      high = std::max(high, at[i]);
      bits |= at[i];
    });
  }
  if ((bits & (bytes - 1)) == 0) {
    if constexpr (S == ptx::Space::shared) {
      if (uint64_t{high} + bytes <= w.shared_bytes_ && uint64_t{high} + bytes >= bytes) {
        uint8_t* base = w.shared_;
        for (unsigned i = 0; i < kLanes; ++i) pointer[i] = base + (mask >> i & 1 ? at[i] : 0);
        return true;
      }
    } else if constexpr (S == ptx::Space::local) {
      if (uint64_t{high} + bytes <= w.local_bytes_ && uint64_t{high} + bytes >= bytes) {
        uint8_t* base = w.local_memory();
        each_lane(mask, [&](unsigned i) { pointer[i] = base + i * w.local_bytes_ + at[i]; });
        return true;
      }
    } else {
      const Executor::CachedRange& range = w.executor_->ranges[range_slot(op)];
      if (low >= range.begin && high < range.end && bytes <= range.end - high &&
          (kind == AccessKind::load || range.writable)) {
        for (unsigned i = 0; i < kLanes; ++i) pointer[i] = reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(at[i]));
        return true;
      }
    }
  }
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    unsigned lane = static_cast<unsigned>(std::countr_zero(left));
    pointer[lane] = resolve_lane(w, op, lane, S, at[lane], bytes, kind);
    if (pointer[lane] == nullptr) return false;
  }
  return true;
}

// Reads a NUL-terminated string at a generic address. Returns false after a fault.
bool read_string(Warp& w, const Op& op, unsigned lane, uint64_t address, std::string& text);

// Lowers the address operand for a space, to a register of the width A that the space's handlers accept.
struct LoweredAddress {
  Ref base;
  bool narrow = false;  // 4 bytes; only for shared and local
  uint64_t offset = 0;
};
bool lower_address(Lowering& l, const ptx::Operand& operand, ptx::Space space, LoweredAddress& result);

// Returns the space that the modifiers name, or generic.
ptx::Space space_of(const ptx::Instruction& i);

}  // namespace gpuwire::software_device
