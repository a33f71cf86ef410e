// A decoded instruction, and the places of its operands.
//
// Registers are structures of arrays: one register of a warp is 32 contiguous values of its width, and a predicate is
// one 32-bit word with a bit per lane. An operand is a Ref: an area, and the offset in it.
#pragma once

#include <cstdint>

namespace gpuwire::software_device {

inline constexpr uint32_t kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

class Warp;
struct Op;

// Executes one instruction for the lanes of `mask` (never empty).
using Handler = void (*)(Warp& warp, const Op& op, uint32_t mask);

enum class Area : uint32_t {
  frame,             // the running function's registers and .param variables
  constants,         // immediates of the program, each repeated for 32 lanes
  thread,            // special registers that differ by lane or warp
  block,             // special registers that are the same for all of a block, repeated for 32 lanes
  virtual_register,  // only until slots are assigned; the offset is the number of a virtual register
};

struct Ref {
  uint32_t bits = 0;

  constexpr Ref() = default;
  constexpr Ref(Area area, uint32_t offset) : bits(static_cast<uint32_t>(area) << 29 | offset) {}
  constexpr Area area() const { return static_cast<Area>(bits >> 29); }
  constexpr uint32_t offset() const { return bits & kOffsetMax; }
  static constexpr uint32_t kOffsetMax = (1u << 29) - 1;
};

inline constexpr uint32_t kNoGuard = 0xffffffffu;
inline constexpr uint32_t kGuardNegated = 0x80000000u;
inline constexpr unsigned kRefsPerOp = 8;

// One cache line. `ref` contains the results, then the sources.
struct alignas(64) Op {
  Handler run = nullptr;
  Ref ref[kRefsPerOp];
  uint64_t immediate = 0;     // address offset, or defined by the handler
  uint32_t guard = kNoGuard;  // frame offset of the guard's predicate, with kGuardNegated
  uint32_t line = 0;          // of the PTX text
  uint32_t target = 0;        // branch target (op index), call site or table
  uint8_t count = 1;          // vector elements of a memory access
  uint8_t definitions = 0;    // number of refs that are results
  uint16_t detail = 0;        // defined by the handler
};
static_assert(sizeof(Op) == 64);

}  // namespace gpuwire::software_device
