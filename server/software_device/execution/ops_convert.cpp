// cvt: PTX ISA 9.0, section 9.7.9.21. Compiled with -frounding-math.
#include <cmath>
#include <limits>
#include <type_traits>

#include "server/software_device/execution/float_formats.hpp"
#include "server/software_device/execution/handlers.hpp"
#include "server/software_device/execution/lanes.hpp"
#include "server/software_device/execution/rounding_mode.hpp"

namespace gpuwire::software_device {

using ptx::Instruction;
using ptx::Modifier;
using ptx::ModifierSet;
using ptx::Operand;
using ptx::Type;

namespace {

// detail of conversions: the Rounding of the result in bits 0-2, the rounding to an integral value in bits 4-6 (0:
// none, else 1 + Rounding)
enum : uint16_t { kFlushes = 0x100, kSaturates = 0x200, kRelu = 0x400 };

Rounding result_rounding(uint16_t detail) { return static_cast<Rounding>(detail & 7); }

template <class T>
T integral(T value, uint16_t detail) {
  switch (detail >> 4 & 7) {
    case 1 + static_cast<int>(Rounding::nearest_even): return std::nearbyint(value);
    case 1 + static_cast<int>(Rounding::toward_zero): return std::trunc(value);
    case 1 + static_cast<int>(Rounding::down): return std::floor(value);
    case 1 + static_cast<int>(Rounding::up): return std::ceil(value);
    default: return value;
  }
}

uint16_t integral_rounding(const Instruction& i) {
  if (i.has(Modifier::rni)) return (1 + static_cast<uint16_t>(Rounding::nearest_even)) << 4;
  if (i.has(Modifier::rzi)) return (1 + static_cast<uint16_t>(Rounding::toward_zero)) << 4;
  if (i.has(Modifier::rmi)) return (1 + static_cast<uint16_t>(Rounding::down)) << 4;
  if (i.has(Modifier::rpi)) return (1 + static_cast<uint16_t>(Rounding::up)) << 4;
  return 0;
}

// The stored form of a floating-point type, and its value, which f64 represents exactly.
template <Type T>
struct Format;
template <>
struct Format<Type::f16> {
  using Stored = uint16_t;
  static double decode(Stored s) { return half_to_float(s); }
  static Stored encode(double v, Rounding r) { return encode_small<10>(v, r); }
};
template <>
struct Format<Type::bf16> {
  using Stored = uint16_t;
  static double decode(Stored s) { return brain_to_float(s); }
  static Stored encode(double v, Rounding r) { return encode_small<7>(v, r); }
};
template <>
struct Format<Type::f32> {
  using Stored = float;
  static double decode(Stored s) { return s; }
  static Stored encode(double v, Rounding r) {
    if (r == Rounding::nearest_even || !std::isfinite(v)) return canonical(static_cast<float>(v));
    float nearest = static_cast<float>(v);
    // One step back if the nearest value is beyond the wanted direction.
    bool above = static_cast<double>(nearest) > v, below = static_cast<double>(nearest) < v;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (r == Rounding::down) return above ? std::nextafter(nearest, -kInfinity) : nearest;
    if (r == Rounding::up) return below ? std::nextafter(nearest, kInfinity) : nearest;
    if (v > 0) return above ? std::nextafter(nearest, 0.0f) : nearest;
    return below ? std::nextafter(nearest, 0.0f) : nearest;
  }
};
template <>
struct Format<Type::f64> {
  using Stored = double;
  static double decode(Stored s) { return s; }
  static Stored encode(double v, Rounding) { return v; }
};

template <Type D, Type A>
void float_to_float(Warp& w, const Op& op, uint32_t mask) {
  uint16_t detail = op.detail;
  map1<typename Format<D>::Stored, typename Format<A>::Stored>(w, op, mask, [=](typename Format<A>::Stored a) {
    if constexpr (A == Type::f32) {
      if (detail & kFlushes) a = flush(a);
    }
    double value = integral(Format<A>::decode(a), detail);
    if (detail & kSaturates) value = saturate(value);
    if ((detail & kRelu) && value < 0) value = 0;
    typename Format<D>::Stored d = Format<D>::encode(value, result_rounding(detail));
    if constexpr (D == Type::f32) {
      if (detail & kFlushes) d = flush(d);
    }
    if constexpr (sizeof(d) == 2) {
      if ((detail & kRelu) && d == 0x8000) d = 0;
    }
    return d;
  });
}

// The frequent conversions, which need no decision per lane.
struct Widen {
  double operator()(float a) const { return a; }
};
struct Narrow {
  float operator()(double a) const { return canonical(static_cast<float>(a)); }
};
struct HalfToFloat {
  float operator()(uint16_t a) const { return half_to_float(a); }
};

template <Type D>
Handler float_from(Type a) {
  switch (a) {
    case Type::f16: return &float_to_float<D, Type::f16>;
    case Type::bf16: return &float_to_float<D, Type::bf16>;
    case Type::f32: return &float_to_float<D, Type::f32>;
    case Type::f64: return &float_to_float<D, Type::f64>;
    default: return nullptr;
  }
}

Handler float_to_float_handler(Type d, Type a, uint16_t detail) {
  if (detail == 0) {
    if (d == Type::f64 && a == Type::f32) return &unary<double, float, Widen>;
    if (d == Type::f32 && a == Type::f64) return &unary<float, double, Narrow>;
    if (d == Type::f32 && a == Type::f16) return &unary<float, uint16_t, HalfToFloat>;
  }
  switch (d) {
    case Type::f16: return float_from<Type::f16>(a);
    case Type::bf16: return float_from<Type::bf16>(a);
    case Type::f32: return float_from<Type::f32>(a);
    case Type::f64: return float_from<Type::f64>(a);
    default: return nullptr;
  }
}

// Integer to floating point. f32 and f64 use the processor's conversion under the rounding mode.
template <class D, class A>
void integer_to_float(Warp& w, const Op& op, uint32_t mask) {
  const A* a = w.in<A>(op.ref[1]);
  D* d = w.out<D>(op.ref[0]);
  bool sat = op.detail & kSaturates;
  if (result_rounding(op.detail) == Rounding::nearest_even && !sat) {
    return map1<D, A>(w, op, mask, [](A v) { return static_cast<D>(v); });
  }
  A from[kLanes];
  D to[kLanes];
  each_lane(mask, [&](unsigned i) { from[i] = a[i]; });
  asm volatile("" : : "r"(from), "r"(to) : "memory");
  {
    RoundingScope scope(result_rounding(op.detail));
    each_lane(mask, [&](unsigned i) { to[i] = static_cast<D>(from[i]); });
    asm volatile("" : : "r"(from), "r"(to) : "memory");
  }
  each_lane(mask, [&](unsigned i) { d[i] = sat ? saturate(to[i]) : to[i]; });
}

// Returns a double that rounds to fewer bits like the integer: the exact value, or one with an odd last bit.
template <class A>
double odd_double(A value) {
  if constexpr (sizeof(A) < 8) return static_cast<double>(value);
  bool negative = value < 0;
  uint64_t magnitude = negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  if (magnitude >> 53 != 0) magnitude = (magnitude & ~uint64_t{0xfff}) | (magnitude & 0xfff ? 0x800 : 0);
  double result = static_cast<double>(magnitude);
  return negative ? -result : result;
}

template <Type D, class A>
void integer_to_small(Warp& w, const Op& op, uint32_t mask) {
  uint16_t detail = op.detail;
  map1<uint16_t, A>(w, op, mask, [=](A a) {
    double value = odd_double(a);
    return Format<D>::encode(detail & kSaturates ? saturate(value) : value, result_rounding(detail));
  });
}

template <class A>
Handler float_from_integer(Type d) {
  switch (d) {
    case Type::f32: return &integer_to_float<float, A>;
    case Type::f64: return &integer_to_float<double, A>;
    case Type::f16: return &integer_to_small<Type::f16, A>;
    case Type::bf16: return &integer_to_small<Type::bf16, A>;
    default: return nullptr;
  }
}

template <class D, Type A>
D to_integer(typename Format<A>::Stored stored, uint16_t detail) {
  if constexpr (A == Type::f32) {
    if (detail & kFlushes) stored = flush(stored);
  }
  double value = Format<A>::decode(stored);
  if (value != value) {
    bool zero = A != Type::f64 && sizeof(D) < 8;
    return zero ? D(0) : static_cast<D>(std::make_unsigned_t<D>(1) << (8 * sizeof(D) - 1));
  }
  value = integral(value, detail);
  constexpr double kLimit = std::is_signed_v<D> ? static_cast<double>(uint64_t{1} << (8 * sizeof(D) - 1))
                                                : 2.0 * static_cast<double>(uint64_t{1} << (8 * sizeof(D) - 1));
  if (value >= kLimit) return std::numeric_limits<D>::max();
  if (std::is_signed_v<D> ? value < -kLimit : value <= 0) return std::numeric_limits<D>::min();
  if constexpr (sizeof(D) == 8 && std::is_unsigned_v<D>) {
    if (value >= 0x1p63) return static_cast<D>(static_cast<int64_t>(value - 0x1p63)) + (uint64_t{1} << 63);
  }
  return static_cast<D>(static_cast<int64_t>(value));
}

template <class D, Type A>
void float_to_integer(Warp& w, const Op& op, uint32_t mask) {
  uint16_t detail = op.detail;
  map1<D, typename Format<A>::Stored>(w, op, mask,
                                      [=](typename Format<A>::Stored a) { return to_integer<D, A>(a, detail); });
}

template <class D>
Handler integer_from_float(Type a) {
  switch (a) {
    case Type::f16: return &float_to_integer<D, Type::f16>;
    case Type::bf16: return &float_to_integer<D, Type::bf16>;
    case Type::f32: return &float_to_integer<D, Type::f32>;
    case Type::f64: return &float_to_integer<D, Type::f64>;
    default: return nullptr;
  }
}

template <class D, class A>
D clamped(A a) {
  constexpr D kMax = std::numeric_limits<D>::max(), kMin = std::numeric_limits<D>::min();
  if constexpr (std::is_signed_v<A>) {
    if constexpr (std::is_signed_v<D>) {
      int64_t v = a;
      return v > kMax ? kMax : v < kMin ? kMin : static_cast<D>(v);
    } else {
      return a < 0 ? D(0) : static_cast<uint64_t>(a) > kMax ? kMax : static_cast<D>(a);
    }
  } else {
    return uint64_t{a} > static_cast<uint64_t>(kMax) ? kMax : static_cast<D>(a);
  }
}

template <class D, class A>
void integer_to_integer(Warp& w, const Op& op, uint32_t mask) {
  map1<D, A>(w, op, mask, [](A a) { return clamped<D>(a); });
}

// Calls `f` with a value of the C++ type of an integer type.
template <class F>
Handler with_integer(Type type, F f) {
  switch (type) {
    case Type::u8:
    case Type::b8: return f(uint8_t{});
    case Type::u16:
    case Type::b16: return f(uint16_t{});
    case Type::u32:
    case Type::b32: return f(uint32_t{});
    case Type::u64:
    case Type::b64: return f(uint64_t{});
    case Type::s8: return f(int8_t{});
    case Type::s16: return f(int16_t{});
    case Type::s32: return f(int32_t{});
    case Type::s64: return f(int64_t{});
    default: return nullptr;
  }
}

Handler integer_handler(Type d, Type a, bool sat) {
  if (!sat) return resize_handler(ptx::size_of(a), ptx::size_of(d), ptx::is_signed(a));
  return with_integer(d, [&](auto dv) {
    return with_integer(a, [&](auto av) -> Handler { return &integer_to_integer<decltype(dv), decltype(av)>; });
  });
}

Handler handler_for(Type d, Type a, uint16_t detail) {
  if (ptx::is_float(d) && ptx::is_float(a)) return float_to_float_handler(d, a, detail);
  if (ptx::is_float(d)) return with_integer(a, [&](auto v) { return float_from_integer<decltype(v)>(d); });
  if (ptx::is_float(a)) return with_integer(d, [&](auto v) { return integer_from_float<decltype(v)>(a); });
  return integer_handler(d, a, detail & kSaturates);
}

// Returns the source in a register of exactly its type's width.
Ref exact_source(Lowering& l, const Operand& operand, Type type) {
  uint32_t bytes = 0;
  Ref source = l.wide_source(operand, type, bytes);
  if (bytes == ptx::size_of(type)) return source;
  Ref narrow = l.temporary(ptx::size_of(type));
  l.emit(resize_handler(bytes, ptx::size_of(type), false), {narrow}, {source});
  return narrow;
}

bool lower_packed(Lowering& l, const Instruction& i, uint16_t detail) {
  Type to = i.type() == Type::f16x2 ? Type::f16 : Type::bf16;
  if (i.type(1) != Type::f32 || i.operands.size() != 3) return false;
  Ref high = l.temporary(2), low = l.temporary(2);
  Ref a = l.source(i.operands[1], Type::f32), b = l.source(i.operands[2], Type::f32);
  l.emit(handler_for(to, Type::f32, detail), {high}, {a}).detail = detail;
  l.emit(handler_for(to, Type::f32, detail), {low}, {b}).detail = detail;
  l.emit(join_halves_handler(), {l.destination(i.operands[0], Type::b32)}, {low, high});
  return true;
}

// cvt.pack.sat.s16.s32 d, a, b;  cvt.pack.sat.u8.s32.b32 d, a, b, c: two clamped values below the lowest part of c.
template <class T>
void pack_integers(Warp& w, const Op& op, uint32_t mask) {
  constexpr unsigned kBits = 8 * sizeof(T);
  using U = std::make_unsigned_t<T>;
  map3<uint32_t, int32_t, int32_t, uint32_t>(w, op, mask, [](int32_t a, int32_t b, uint32_t c) {
    uint32_t low = static_cast<U>(clamped<T>(b)), high = static_cast<U>(clamped<T>(a));
    return static_cast<uint32_t>(uint64_t{c} << (2 * kBits)) | high << kBits | low;
  });
}

bool lower_pack(Lowering& l, const Instruction& i) {
  if (!i.has(Modifier::sat) || i.types.size() < 2 || i.type(1) != Type::s32) return false;
  bool small = ptx::size_of(i.type()) == 1;
  if (i.operands.size() != (small ? 4u : 3u) || i.types.size() != (small ? 3u : 2u)) return false;
  Ref a = l.source(i.operands[1], Type::s32), b = l.source(i.operands[2], Type::s32);
  Ref c = small ? l.source(i.operands[3], Type::b32) : l.constant(0, 4);
  Handler handler = i.type() == Type::s16   ? &pack_integers<int16_t>
                    : i.type() == Type::u16 ? &pack_integers<uint16_t>
                    : i.type() == Type::s8  ? &pack_integers<int8_t>
                    : i.type() == Type::u8  ? &pack_integers<uint8_t>
                                            : nullptr;
  l.emit(handler, {l.destination(i.operands[0], Type::b32)}, {a, b, c});
  return true;
}

bool lower_cvt(Lowering& l, const Instruction& i) {
  if (i.has(Modifier::pack)) return lower_pack(l, i);
  if (i.types.size() != 2) return false;
  Type to = i.type(0), from = i.type(1);
  uint16_t detail = static_cast<uint16_t>(
      static_cast<uint16_t>(rounding_of(i)) | integral_rounding(i) | (i.has(Modifier::ftz) ? kFlushes : 0) |
      (i.has(Modifier::sat) ? kSaturates : 0) | (i.has(Modifier::relu) ? kRelu : 0));
  if (to == Type::f16x2 || to == Type::bf16x2) return lower_packed(l, i, detail);
  if (i.operands.size() != 2 || from == Type::pred || to == Type::pred) return false;
  if (i.has(Modifier::relu) && (ptx::size_of(to) != 2 || !ptx::is_float(to) || from != Type::f32)) return false;
  if (ptx::is_float(from) && !ptx::is_float(to) && integral_rounding(i) == 0) {
    return l.invalid("a conversion from floating point to integer needs .rni, .rzi, .rmi or .rpi");
  }
  Ref a = exact_source(l, i.operands[1], from);
  uint32_t bytes = 0;
  Ref d = l.wide_destination(i.operands[0], to, bytes);
  Ref result = bytes == ptx::size_of(to) ? d : l.temporary(ptx::size_of(to));
  l.emit(handler_for(to, from, detail), {result}, {a}).detail = detail;
  if (bytes != ptx::size_of(to)) l.emit(resize_handler(ptx::size_of(to), bytes, ptx::is_signed(to)), {d}, {result});
  return true;
}

struct JoinHalves {
  uint32_t operator()(uint16_t low, uint16_t high) const { return static_cast<uint32_t>(high) << 16 | low; }
};
struct HighHalf {
  uint16_t operator()(uint32_t v) const { return static_cast<uint16_t>(v >> 16); }
};

const OpcodeEntry kOpcodes[] = {
    {"cvt",
     kRoundings | ModifierSet(Modifier::rni, Modifier::rzi, Modifier::rmi, Modifier::rpi, Modifier::ftz, Modifier::sat,
                              Modifier::relu, Modifier::pack),
     lower_cvt},
};

}  // namespace

std::span<const OpcodeEntry> convert_opcodes() { return kOpcodes; }

Handler join_halves_handler() { return &binary<uint32_t, uint16_t, uint16_t, JoinHalves>; }
Handler high_half_handler() { return &unary<uint16_t, uint32_t, HighHalf>; }

}  // namespace gpuwire::software_device
