// Loops over the lanes of a warp, for the handlers of simple instructions.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "server/software_device/execution/lowering.hpp"
#include "server/software_device/execution/op.hpp"
#include "server/software_device/execution/warp.hpp"

namespace gpuwire::software_device {

template <class F>
inline void each_lane(uint32_t mask, F&& f) {
  for (; mask != 0; mask &= mask - 1) f(static_cast<unsigned>(std::countr_zero(mask)));
}

// d[i] = f(a[i]...). A result may be in exactly the place of a source, and otherwise overlaps none, so the lanes are
// independent.
template <class D, class A, class F>
inline void map1(Warp& warp, const Op& op, uint32_t mask, F f) {
  D* d = warp.out<D>(op.ref[0]);
  const A* a = warp.in<A>(op.ref[1]);
  if (warp.whole(mask)) {
#pragma GCC ivdep
    for (unsigned i = 0; i < kLanes; ++i) d[i] = f(a[i]);
  } else {
    each_lane(mask, [&](unsigned i) { d[i] = f(a[i]); });
  }
}

template <class D, class A, class B, class F>
inline void map2(Warp& warp, const Op& op, uint32_t mask, F f) {
  D* d = warp.out<D>(op.ref[0]);
  const A* a = warp.in<A>(op.ref[1]);
  const B* b = warp.in<B>(op.ref[2]);
  if (warp.whole(mask)) {
#pragma GCC ivdep
    for (unsigned i = 0; i < kLanes; ++i) d[i] = f(a[i], b[i]);
  } else {
    each_lane(mask, [&](unsigned i) { d[i] = f(a[i], b[i]); });
  }
}

template <class D, class A, class B, class C, class F>
inline void map3(Warp& warp, const Op& op, uint32_t mask, F f) {
  D* d = warp.out<D>(op.ref[0]);
  const A* a = warp.in<A>(op.ref[1]);
  const B* b = warp.in<B>(op.ref[2]);
  const C* c = warp.in<C>(op.ref[3]);
  if (warp.whole(mask)) {
#pragma GCC ivdep
    for (unsigned i = 0; i < kLanes; ++i) d[i] = f(a[i], b[i], c[i]);
  } else {
    each_lane(mask, [&](unsigned i) { d[i] = f(a[i], b[i], c[i]); });
  }
}

// Handlers for an operation F (a stateless function object).
template <class D, class A, class F>
void unary(Warp& warp, const Op& op, uint32_t mask) {
  map1<D, A>(warp, op, mask, F{});
}
template <class D, class A, class B, class F>
void binary(Warp& warp, const Op& op, uint32_t mask) {
  map2<D, A, B>(warp, op, mask, F{});
}
template <class D, class A, class B, class C, class F>
void ternary(Warp& warp, const Op& op, uint32_t mask) {
  map3<D, A, B, C>(warp, op, mask, F{});
}

// Returns a bit for each byte's lowest bit. Precondition: the bytes are 0 or 1.
inline uint32_t pack_bits(const uint8_t (&bytes)[kLanes]) {
  uint32_t bits = 0;
  for (unsigned i = 0; i < kLanes; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, bytes + i, 8);
    // The product gathers the eight lowest bits in the top byte, with lane 0 in its lowest bit.
    bits |= static_cast<uint32_t>((eight * 0x0102040810204080u) >> 56) << i;
  }
  return bits;
}

template <class T, class F>
inline uint32_t compare_lanes(const T* a, const T* b, bool whole, uint32_t mask, F f) {
  if (whole) {
    uint8_t bytes[kLanes];
#pragma GCC ivdep
    for (unsigned i = 0; i < kLanes; ++i) bytes[i] = f(a[i], b[i]);
    return pack_bits(bytes);
  }
  uint32_t bits = 0;
  each_lane(mask, [&](unsigned i) { bits |= static_cast<uint32_t>(f(a[i], b[i])) << i; });
  return bits;
}

// Chooses a handler by an integer type, or only by its size if the sign does not matter.
template <template <class> class H>
Handler by_integer_type(ptx::Type type) {
  using ptx::Type;
  switch (type) {
    case Type::u16:
    case Type::b16: return &H<uint16_t>::run;
    case Type::u32:
    case Type::b32: return &H<uint32_t>::run;
    case Type::u64:
    case Type::b64: return &H<uint64_t>::run;
    case Type::s16: return &H<int16_t>::run;
    case Type::s32: return &H<int32_t>::run;
    case Type::s64: return &H<int64_t>::run;
    default: return nullptr;
  }
}

template <template <class> class H>
Handler by_unsigned_size(ptx::Type type) {
  switch (ptx::size_of(type)) {
    case 1: return &H<uint8_t>::run;
    case 2: return &H<uint16_t>::run;
    case 4: return &H<uint32_t>::run;
    case 8: return &H<uint64_t>::run;
    default: return nullptr;
  }
}

// Lowers "d, a", "d, a, b" and "d, a, b, c" if all operands have one type.
inline bool lower_same_type(Lowering& l, const ptx::Instruction& i, Handler handler, size_t sources) {
  if (handler == nullptr || i.types.size() != 1 || i.operands.size() != sources + 1) return false;
  Ref source[3];
  for (size_t s = 0; s < sources; ++s) source[s] = l.source(i.operands[s + 1], i.type());
  Ref d = l.destination(i.operands[0], i.type());
  l.emit(handler, std::span<const Ref>(&d, 1), std::span<const Ref>(source, sources));
  return true;
}

}  // namespace gpuwire::software_device
