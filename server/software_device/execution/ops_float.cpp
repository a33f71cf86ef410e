// Floating-point arithmetic: PTX ISA 9.0, sections 9.7.3 (f32, f64) and 9.7.4 (f16, bf16). ops_rounding.cpp has the
// directed roundings.
#include <limits>

#include "server/software_device/execution/float_formats.hpp"
#include "server/software_device/execution/float_operations.hpp"
#include "server/software_device/execution/handlers.hpp"
#include "server/software_device/execution/lanes.hpp"
#include "server/software_device/execution/rounding_mode.hpp"

namespace gpuwire::software_device {
namespace {

using ptx::Instruction;
using ptx::Modifier;
using ptx::ModifierSet;
using ptx::Type;

// Ftz and Sat apply to f32; Sat never applies to f64.
template <class T, class F, bool Ftz, bool Sat>
struct Rounded {
  static T in(T v) {
    if constexpr (Ftz) return flush(v);
    else return v;
  }
  static T out(T v) {
    if constexpr (Ftz) v = flush(v);
    if constexpr (Sat) v = saturate(v);
    return canonical(v);
  }
  T operator()(T a) const { return out(F{}(in(a))); }
  T operator()(T a, T b) const { return out(F{}(in(a), in(b))); }
  T operator()(T a, T b, T c) const { return out(F{}(in(a), in(b), in(c))); }
};

template <class T, class F, unsigned Sources>
constexpr Handler handler_of() {
  if constexpr (Sources == 1) return &unary<T, T, F>;
  else if constexpr (Sources == 2) return &binary<T, T, T, F>;
  else return &ternary<T, T, T, T, F>;
}

template <class F, unsigned Sources>
Handler float_handler(const Instruction& i) {
  bool ftz = i.has(Modifier::ftz), sat = i.has(Modifier::sat);
  if (i.type() == Type::f64)
    return ftz || sat ? nullptr : handler_of<double, Rounded<double, F, false, false>, Sources>();
  if (i.type() != Type::f32) return nullptr;
  if (ftz)
    return sat ? handler_of<float, Rounded<float, F, true, true>, Sources>()
               : handler_of<float, Rounded<float, F, true, false>, Sources>();
  return sat ? handler_of<float, Rounded<float, F, false, true>, Sources>()
             : handler_of<float, Rounded<float, F, false, false>, Sources>();
}

// f16 and bf16, one or two in a register. Ftz applies to f16 only.
template <class Format, class F, bool Ftz, bool Sat>
struct Small {
  static double in(uint16_t v) { return Format::decode(Ftz ? Format::flushed(v) : v); }
  static uint16_t out(double v) {
    uint16_t bits = Format::encode(Sat ? saturate(v) : v);
    return Ftz ? Format::flushed(bits) : bits;
  }
  uint16_t operator()(uint16_t a) const { return out(F{}(in(a))); }
  uint16_t operator()(uint16_t a, uint16_t b) const { return out(F{}(in(a), in(b))); }
  uint16_t operator()(uint16_t a, uint16_t b, uint16_t c) const { return out(F{}(in(a), in(b), in(c))); }
};

template <class S>
struct Packed {
  static uint32_t join(uint16_t low, uint16_t high) { return static_cast<uint32_t>(high) << 16 | low; }
  static uint16_t low(uint32_t v) { return static_cast<uint16_t>(v); }
  static uint16_t high(uint32_t v) { return static_cast<uint16_t>(v >> 16); }
  uint32_t operator()(uint32_t a) const { return join(S{}(low(a)), S{}(high(a))); }
  uint32_t operator()(uint32_t a, uint32_t b) const { return join(S{}(low(a), low(b)), S{}(high(a), high(b))); }
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const {
    return join(S{}(low(a), low(b), low(c)), S{}(high(a), high(b), high(c)));
  }
};

template <class Format, class F, bool Ftz, bool Sat, unsigned Sources>
Handler small_handler(bool packed) {
  using S = Small<Format, F, Ftz, Sat>;
  return packed ? handler_of<uint32_t, Packed<S>, Sources>() : handler_of<uint16_t, S, Sources>();
}

template <class F, unsigned Sources>
Handler small_handler(const Instruction& i) {
  bool packed = i.type() == Type::f16x2 || i.type() == Type::bf16x2;
  bool ftz = i.has(Modifier::ftz), sat = i.has(Modifier::sat);
  if (i.type() == Type::f16 || i.type() == Type::f16x2) {
    if (ftz)
      return sat ? small_handler<HalfFormat, F, true, true, Sources>(packed)
                 : small_handler<HalfFormat, F, true, false, Sources>(packed);
    return sat ? small_handler<HalfFormat, F, false, true, Sources>(packed)
               : small_handler<HalfFormat, F, false, false, Sources>(packed);
  }
  if (i.type() != Type::bf16 && i.type() != Type::bf16x2) return nullptr;
  return ftz || sat ? nullptr : small_handler<BrainFormat, F, false, false, Sources>(packed);
}

bool is_small(Type type) {
  return type == Type::f16 || type == Type::f16x2 || type == Type::bf16 || type == Type::bf16x2;
}

// max(result, +0), with NaN unchanged: .relu of the small formats, which is applied to the operation's result.
template <class T>
void relu(Warp& w, const Op& op, uint32_t m) {
  map1<T, T>(w, op, m, [](T a) {
    T result = 0;
    for (unsigned k = 0; k < sizeof(T) / 2; ++k) {
      uint16_t half = static_cast<uint16_t>(a >> (16 * k));
      if ((half & 0x8000) && half != 0xffff) half = 0;
      result = static_cast<T>(result | static_cast<T>(half) << (16 * k));
    }
    return result;
  });
}

bool lower_relu(Lowering& l, const Instruction& i) {
  if (!is_small(i.type())) return false;
  Ref d = l.destination(i.operands[0], i.type());
  l.emit(ptx::size_of(i.type()) == 2 ? &relu<uint16_t> : &relu<uint32_t>, {d}, {d});
  return true;
}

bool lower_directed(Lowering& l, const Instruction& i, size_t sources) {
  if (!lower_same_type(l, i, directed_handler(i), sources)) return false;
  l.target().ops.back().detail = directed_detail(i);
  return true;
}

template <class F>
bool lower_sum(Lowering& l, const Instruction& i) {
  if (ptx::is_integer(i.type())) return lower_integer_arithmetic(l, i);
  if (i.has(Modifier::cc) || i.has(Modifier::hi) || i.has(Modifier::lo) || i.has(Modifier::wide)) return false;
  if (is_small(i.type()))
    return rounding_of(i) == Rounding::nearest_even && lower_same_type(l, i, small_handler<F, 2>(i), 2);
  if (rounding_of(i) != Rounding::nearest_even) return lower_directed(l, i, 2);
  return lower_same_type(l, i, float_handler<F, 2>(i), 2);
}

bool lower_fma(Lowering& l, const Instruction& i) {
  if (i.opcode == "mad" && ptx::is_integer(i.type())) return lower_integer_arithmetic(l, i);
  if (i.has(Modifier::cc) || i.has(Modifier::hi) || i.has(Modifier::lo) || i.has(Modifier::wide)) return false;
  if (is_small(i.type())) {
    if (!i.has(Modifier::rn) || !lower_same_type(l, i, small_handler<FmaToOdd, 3>(i), 3)) return false;
    return !i.has(Modifier::relu) || lower_relu(l, i);
  }
  if (i.has(Modifier::relu)) return false;
  if (!has_rounding(i) && i.opcode == "fma") return l.invalid("fma needs a rounding");
  if (rounding_of(i) != Rounding::nearest_even) return lower_directed(l, i, 3);
  return lower_same_type(l, i, float_handler<MultiplyAdd, 3>(i), 3);
}

// div.approx is a * (1 / b), where 1 / b of the largest divisors counts as zero (PTX ISA, div).
struct DivideRoughly {
  float operator()(float a, float b) const {
    return std::fabs(b) > 0x1p126f && std::isfinite(b) ? a * std::copysign(0.0f, b) : a / b;
  }
};

bool lower_div(Lowering& l, const Instruction& i) {
  if (ptx::is_integer(i.type())) return lower_integer_arithmetic(l, i);
  bool approximate = i.has(Modifier::approx) || i.has(Modifier::full);
  if (approximate && (i.type() != Type::f32 || has_rounding(i))) return false;
  if (!approximate && !has_rounding(i)) return l.invalid("div needs a rounding, .approx or .full");
  if (rounding_of(i) != Rounding::nearest_even) return lower_directed(l, i, 2);
  return lower_same_type(l, i,
                         i.has(Modifier::approx) ? float_handler<DivideRoughly, 2>(i) : float_handler<Divide, 2>(i), 2);
}

bool lower_sqrt(Lowering& l, const Instruction& i) {
  if (i.has(Modifier::approx)) {
    if (i.type() != Type::f32 || has_rounding(i)) return false;
  } else if (!has_rounding(i)) {
    return l.invalid("sqrt needs a rounding or .approx");
  }
  if (rounding_of(i) != Rounding::nearest_even) return lower_directed(l, i, 1);
  return lower_same_type(l, i, float_handler<SquareRoot, 1>(i), 1);
}

// Uses only the upper half of the input and of the result (PTX ISA, rcp.approx.ftz.f64, rsqrt.approx.ftz.f64).
double upper_half(double v) { return std::bit_cast<double>(std::bit_cast<uint64_t>(v) & 0xffffffff00000000); }
double flush_double(double v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0, v) : v; }
struct RoughReciprocal {
  double operator()(double a) const { return flush_double(upper_half(1.0 / flush_double(upper_half(a)))); }
};
struct RoughReciprocalRoot {
  double operator()(double a) const { return upper_half(1.0 / std::sqrt(flush_double(upper_half(a)))); }
};
struct ReciprocalRoot {
  float operator()(float a) const { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a))); }
  // Computed in long double, so that nearly all results are correctly rounded: nvcc uses the instruction alone for
  // rsqrt().
  double operator()(double a) const { return static_cast<double>(1.0L / std::sqrt(static_cast<long double>(a))); }
};

bool lower_rcp(Lowering& l, const Instruction& i) {
  if (i.has(Modifier::approx)) {
    if (has_rounding(i)) return false;
    if (i.type() == Type::f64)
      return i.has(Modifier::ftz) && lower_same_type(l, i, &unary<double, double, RoughReciprocal>, 1);
  } else if (!has_rounding(i)) {
    return l.invalid("rcp needs a rounding or .approx");
  }
  if (rounding_of(i) != Rounding::nearest_even) return lower_directed(l, i, 1);
  return lower_same_type(l, i, float_handler<Reciprocal, 1>(i), 1);
}

template <bool Ftz>
constexpr Handler kReciprocalRoot = &unary<float, float, Rounded<float, ReciprocalRoot, Ftz, false>>;

bool lower_rsqrt(Lowering& l, const Instruction& i) {
  if (!i.has(Modifier::approx)) return false;
  if (i.type() == Type::f64) {
    return lower_same_type(
        l, i,
        i.has(Modifier::ftz) ? &unary<double, double, RoughReciprocalRoot> : &unary<double, double, ReciprocalRoot>, 1);
  }
  if (i.type() != Type::f32) return false;
  return lower_same_type(l, i, i.has(Modifier::ftz) ? kReciprocalRoot<true> : kReciprocalRoot<false>, 1);
}

// min and max: a number takes precedence over a NaN, and -0 is less than +0. Nan: a NaN takes precedence.
template <class T, bool Maximum, bool Nan, bool Ftz>
struct Extreme {
  T operator()(T a, T b) const {
    if constexpr (Ftz) a = flush(a), b = flush(b);
    constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    if (a != a || b != b) {
      if (Nan || (a != a && b != b)) return canonical(sizeof(T) == 8 ? -kNan : kNan);
      return a != a ? b : a;
    }
    if (a == b) return std::signbit(a) == Maximum ? b : a;
    return (a < b) == Maximum ? b : a;
  }
};

template <bool Maximum, bool Nan>
Handler extreme_handler(Type type, bool ftz) {
  if (type == Type::f64)
    return ftz || Nan ? nullptr : &binary<double, double, double, Extreme<double, Maximum, false, false>>;
  if (type != Type::f32) return nullptr;
  return ftz ? &binary<float, float, float, Extreme<float, Maximum, Nan, true>>
             : &binary<float, float, float, Extreme<float, Maximum, Nan, false>>;
}

template <bool Maximum>
bool lower_extreme(Lowering& l, const Instruction& i) {
  if (ptx::is_integer(i.type())) return lower_integer_arithmetic(l, i);
  if (i.has(Modifier::relu)) return false;
  bool nan = i.has(Modifier::nan_result), ftz = i.has(Modifier::ftz);
  if (is_small(i.type())) {
    Handler handler = nan ? small_handler<Extreme<double, Maximum, true, false>, 2>(i)
                          : small_handler<Extreme<double, Maximum, false, false>, 2>(i);
    return lower_same_type(l, i, handler, 2);
  }
  return lower_same_type(
      l, i, nan ? extreme_handler<Maximum, true>(i.type(), ftz) : extreme_handler<Maximum, false>(i.type(), ftz), 2);
}

// Sign operations on bits, in which NaNs keep their payload. Mask clears the sign, Flip inverts it.
template <class T, T Sign, bool Negate, bool Ftz, T Exponent>
struct SignChange {
  T operator()(T a) const {
    if constexpr (Ftz) {
      if (sizeof(T) == 4 && (a & Exponent) == 0) a &= Sign;
    }
    return static_cast<T>(Negate ? a ^ Sign : a & static_cast<T>(~Sign));
  }
};

template <bool Negate>
bool lower_sign(Lowering& l, const Instruction& i) {
  bool ftz = i.has(Modifier::ftz);
  switch (i.type()) {
    case Type::f32:
      return lower_same_type(
          l, i,
          ftz ? &unary<uint32_t, uint32_t, SignChange<uint32_t, 0x80000000u, Negate, true, 0x7f800000u>>
              : &unary<uint32_t, uint32_t, SignChange<uint32_t, 0x80000000u, Negate, false, 0x7f800000u>>,
          1);
    case Type::f64:
      if (ftz) return false;
      return lower_same_type(l, i,
                             &unary<uint64_t, uint64_t, SignChange<uint64_t, uint64_t{1} << 63, Negate, false, 0>>, 1);
    case Type::f16:
    case Type::bf16:
      if (ftz) return false;
      return lower_same_type(l, i, &unary<uint16_t, uint16_t, SignChange<uint16_t, uint16_t{0x8000}, Negate, false, 0>>,
                             1);
    case Type::f16x2:
    case Type::bf16x2:
      if (ftz) return false;
      return lower_same_type(l, i, &unary<uint32_t, uint32_t, SignChange<uint32_t, 0x80008000u, Negate, false, 0>>, 1);
    default: return lower_integer_arithmetic(l, i);
  }
}

template <class T, T Sign>
struct CopySign {
  T operator()(T a, T b) const { return static_cast<T>((a & Sign) | (b & ~Sign)); }
};

bool lower_copysign(Lowering& l, const Instruction& i) {
  if (i.type() == Type::f32)
    return lower_same_type(l, i, &binary<uint32_t, uint32_t, uint32_t, CopySign<uint32_t, 0x80000000u>>, 2);
  if (i.type() == Type::f64)
    return lower_same_type(l, i, &binary<uint64_t, uint64_t, uint64_t, CopySign<uint64_t, uint64_t{1} << 63>>, 2);
  return false;
}

struct ClassRow {
  Modifier modifier;
  uint16_t mask;  // bit 1 << index of the class
};
enum : uint16_t { kIsNan = 1, kIsInfinite = 2, kIsZero = 4, kIsSubnormal = 8, kIsNormal = 16 };

constexpr ClassRow kClasses[] = {
    {Modifier::finite, kIsZero | kIsSubnormal | kIsNormal},
    {Modifier::infinite, kIsInfinite},
    {Modifier::number, kIsInfinite | kIsZero | kIsSubnormal | kIsNormal},
    {Modifier::notanumber, kIsNan},
    {Modifier::normal, kIsNormal},
    {Modifier::subnormal, kIsSubnormal},
};

template <class T>
void test_class(Warp& w, const Op& op, uint32_t mask) {
  const T* a = w.in<T>(op.ref[1]);
  uint32_t bits = 0;
  each_lane(mask, [&](unsigned i) {
    uint16_t found = 0;
    switch (std::fpclassify(a[i])) {
      case FP_NAN: found = kIsNan; break;
      case FP_INFINITE: found = kIsInfinite; break;
      case FP_ZERO: found = kIsZero; break;
      case FP_SUBNORMAL: found = kIsSubnormal; break;
      default: found = kIsNormal; break;
    }
    bits |= static_cast<uint32_t>((found & op.detail) != 0) << i;
  });
  w.set_predicate(op.ref[0], mask, bits);
}

bool lower_testp(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.operands.size() != 2) return false;
  for (const ClassRow& row : kClasses) {
    if (!i.has(row.modifier)) continue;
    Ref a = l.source(i.operands[1], i.type());
    Handler handler = i.type() == Type::f32   ? &test_class<float>
                      : i.type() == Type::f64 ? &test_class<double>
                                              : nullptr;
    l.emit(handler, {l.predicate_destination(i.operands[0])}, {a}).detail = row.mask;
    return true;
  }
  return false;
}

constexpr ModifierSet kArithmetic =
    kRoundings | ModifierSet(Modifier::ftz, Modifier::sat, Modifier::cc, Modifier::hi, Modifier::lo, Modifier::wide);

const OpcodeEntry kOpcodes[] = {
    {"add", kArithmetic, lower_sum<Plus>},
    {"sub", kArithmetic, lower_sum<Minus>},
    {"mul", kArithmetic, lower_sum<Times>},
    {"mad", kArithmetic, lower_fma},
    {"fma", kArithmetic | ModifierSet(Modifier::relu), lower_fma},
    {"div", kRoundings | ModifierSet(Modifier::ftz, Modifier::approx, Modifier::full), lower_div},
    {"sqrt", kRoundings | ModifierSet(Modifier::ftz, Modifier::approx), lower_sqrt},
    {"rcp", kRoundings | ModifierSet(Modifier::ftz, Modifier::approx), lower_rcp},
    {"rsqrt", ModifierSet(Modifier::ftz, Modifier::approx), lower_rsqrt},
    {"min", ModifierSet(Modifier::ftz, Modifier::nan_result, Modifier::relu), lower_extreme<false>},
    {"max", ModifierSet(Modifier::ftz, Modifier::nan_result, Modifier::relu), lower_extreme<true>},
    {"neg", ModifierSet(Modifier::ftz), lower_sign<true>},
    {"abs", ModifierSet(Modifier::ftz), lower_sign<false>},
    {"copysign", ModifierSet(), lower_copysign},
    {"testp",
     ModifierSet(Modifier::finite, Modifier::infinite, Modifier::number, Modifier::notanumber, Modifier::normal,
                 Modifier::subnormal),
     lower_testp},
};

}  // namespace

std::span<const OpcodeEntry> float_opcodes() { return kOpcodes; }

}  // namespace gpuwire::software_device
