// Integer arithmetic: PTX ISA 9.0, sections 9.7.1 and 9.7.2 (extended precision).
#include <limits>
#include <type_traits>

#include "server/software_device/execution/lanes.hpp"

namespace gpuwire::software_device {
namespace {

using ptx::Instruction;
using ptx::Modifier;
using ptx::ModifierSet;
using ptx::Type;

__extension__ using Wide = __int128;
__extension__ using UnsignedWide = unsigned __int128;

template <class T>
using Unsigned = std::make_unsigned_t<T>;

// Arithmetic wraps. It is done unsigned and in at least 32 bits, where C++ defines the result.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) < 4, uint32_t, Unsigned<T>>;

template <class T>
struct Add {
  T operator()(T a, T b) const { return static_cast<T>(Wrapping<T>(a) + Wrapping<T>(b)); }
};
template <class T>
struct Sub {
  T operator()(T a, T b) const { return static_cast<T>(Wrapping<T>(a) - Wrapping<T>(b)); }
};
template <class T>
struct MulLo {
  T operator()(T a, T b) const { return static_cast<T>(Wrapping<T>(a) * Wrapping<T>(b)); }
};
template <class T>
struct Min {
  T operator()(T a, T b) const { return a < b ? a : b; }
};
template <class T>
struct Max {
  T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T>
struct MinRelu {
  T operator()(T a, T b) const {
    T m = a < b ? a : b;
    return m < 0 ? T(0) : m;
  }
};
template <class T>
struct MaxRelu {
  T operator()(T a, T b) const {
    T m = a < b ? b : a;
    return m < 0 ? T(0) : m;
  }
};
template <class T>
struct Neg {
  T operator()(T a) const { return static_cast<T>(Wrapping<T>(0) - Wrapping<T>(a)); }
};
template <class T>
struct Abs {
  T operator()(T a) const { return a < 0 ? Neg<T>{}(a) : a; }
};

// The type of twice the width, for products.
template <class T>
struct Double;
template <>
struct Double<int8_t> {
  using type = int16_t;
};
template <>
struct Double<uint8_t> {
  using type = uint16_t;
};
template <>
struct Double<int16_t> {
  using type = int32_t;
};
template <>
struct Double<uint16_t> {
  using type = uint32_t;
};
template <>
struct Double<int32_t> {
  using type = int64_t;
};
template <>
struct Double<uint32_t> {
  using type = uint64_t;
};
template <>
struct Double<int64_t> {
  using type = Wide;
};
template <>
struct Double<uint64_t> {
  using type = UnsignedWide;
};

template <class T>
typename Double<T>::type product(T a, T b) {
  using D = typename Double<T>::type;
  if constexpr (sizeof(T) == 2 && std::is_unsigned_v<T>) return uint32_t{a} * uint32_t{b};
  else return static_cast<D>(static_cast<D>(a) * static_cast<D>(b));
}

template <class T>
struct MulHi {
  T operator()(T a, T b) const { return static_cast<T>(product(a, b) >> (8 * sizeof(T))); }
};
template <class T>
struct MadLo {
  T operator()(T a, T b, T c) const { return static_cast<T>(Wrapping<T>(a) * Wrapping<T>(b) + Wrapping<T>(c)); }
};
template <class T>
struct MadHi {
  T operator()(T a, T b, T c) const { return Add<T>{}(MulHi<T>{}(a, b), c); }
};

// PTX does not define division by zero; these are the results of NVIDIA's code sequence.
template <class T>
struct Div {
  T operator()(T a, T b) const {
    if (b == 0) return static_cast<T>(-1);
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return Neg<T>{}(a);
    }
    return static_cast<T>(a / b);
  }
};
template <class T>
struct Rem {
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return 0;
    }
    return static_cast<T>(a % b);
  }
};

template <class T>
struct Sad {
  T operator()(T a, T b, T c) const {
    using W = Wrapping<T>;
    W difference = a < b ? W(b) - W(a) : W(a) - W(b);
    return static_cast<T>(difference + W(c));
  }
};

template <class T>
struct Saturated;
template <>
struct Saturated<int32_t> {
  static int32_t clamp(int64_t v) {
    return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : static_cast<int32_t>(v);
  }
};
struct AddSat {
  int32_t operator()(int32_t a, int32_t b) const { return Saturated<int32_t>::clamp(int64_t{a} + b); }
};
struct SubSat {
  int32_t operator()(int32_t a, int32_t b) const { return Saturated<int32_t>::clamp(int64_t{a} - b); }
};
struct MadHiSat {
  int32_t operator()(int32_t a, int32_t b, int32_t c) const {
    return Saturated<int32_t>::clamp(int64_t{MulHi<int32_t>{}(a, b)} + c);
  }
};

// 24-bit factors are the low bits of 32-bit registers.
template <class T>
int64_t factor24(T a) {
  if constexpr (std::is_signed_v<T>) return static_cast<int32_t>(static_cast<uint32_t>(a) << 8) >> 8;
  else return a & 0xffffff;
}
template <class T>
struct Mul24Lo {
  T operator()(T a, T b) const { return static_cast<T>(factor24(a) * factor24(b)); }
};
template <class T>
struct Mul24Hi {
  T operator()(T a, T b) const { return static_cast<T>((factor24(a) * factor24(b)) >> 16); }
};
template <class T>
struct Mad24Lo {
  T operator()(T a, T b, T c) const { return Add<T>{}(Mul24Lo<T>{}(a, b), c); }
};
template <class T>
struct Mad24Hi {
  T operator()(T a, T b, T c) const { return Add<T>{}(Mul24Hi<T>{}(a, b), c); }
};
struct Mad24HiSat {
  int32_t operator()(int32_t a, int32_t b, int32_t c) const {
    return Saturated<int32_t>::clamp(int64_t{Mul24Hi<int32_t>{}(a, b)} + c);
  }
};

template <template <class> class F>
struct Unary {
  template <class T>
  struct H {
    static void run(Warp& w, const Op& op, uint32_t m) { map1<T, T>(w, op, m, F<T>{}); }
  };
};
template <template <class> class F>
struct Binary {
  template <class T>
  struct H {
    static void run(Warp& w, const Op& op, uint32_t m) { map2<T, T, T>(w, op, m, F<T>{}); }
  };
};
template <template <class> class F>
struct Ternary {
  template <class T>
  struct H {
    static void run(Warp& w, const Op& op, uint32_t m) { map3<T, T, T, T>(w, op, m, F<T>{}); }
  };
};

template <class T>
struct MulWide {
  static void run(Warp& w, const Op& op, uint32_t m) {
    map2<typename Double<T>::type, T, T>(w, op, m, [](T a, T b) { return product(a, b); });
  }
};
template <class T>
struct MadWide {
  static void run(Warp& w, const Op& op, uint32_t m) {
    using D = typename Double<T>::type;
    map3<D, T, T, D>(w, op, m, [](T a, T b, D c) { return Add<D>{}(product(a, b), c); });
  }
};

template <template <class> class H>
Handler by_wide_type(Type type) {
  switch (type) {
    case Type::u16: return &H<uint16_t>::run;
    case Type::s16: return &H<int16_t>::run;
    case Type::u32: return &H<uint32_t>::run;
    case Type::s32: return &H<int32_t>::run;
    default: return nullptr;
  }
}

template <template <class> class H>
Handler by_signed_type(Type type) {
  switch (type) {
    case Type::s16: return &H<int16_t>::run;
    case Type::s32: return &H<int32_t>::run;
    case Type::s64: return &H<int64_t>::run;
    default: return nullptr;
  }
}

template <template <class> class H>
Handler by_type24(Type type) {
  return type == Type::u32 ? &H<uint32_t>::run : type == Type::s32 ? &H<int32_t>::run : nullptr;
}

// The carry is a bit per lane outside of the frame.
enum CarryUse : unsigned { kCarryIn = 1, kCarryOut = 2 };

template <class T, unsigned U>
void add_carry(Warp& w, const Op& op, uint32_t mask) {
  T* d = w.out<T>(op.ref[0]);
  const T* a = w.in<T>(op.ref[1]);
  const T* b = w.in<T>(op.ref[2]);
  uint32_t carry = w.carry_;
  each_lane(mask, [&](unsigned i) {
    T in = (U & kCarryIn) ? (carry >> i & 1) : 0;
    T half = a[i] + b[i];
    uint32_t out = half < a[i];
    T sum = half + in;
    out |= sum < half;
    if (U & kCarryOut) carry = (carry & ~(1u << i)) | out << i;
    d[i] = sum;
  });
  if (U & kCarryOut) w.carry_ = carry;
}

// CC.CF is the carry of a + ~b + 1, which is the opposite of the borrow: an addc behind a sub.cc adds one if nothing
// was borrowed. PTX only describes a borrow, but nvcc's code for 128-bit quotients relies on the carry.
template <class T, unsigned U>
void sub_carry(Warp& w, const Op& op, uint32_t mask) {
  T* d = w.out<T>(op.ref[0]);
  const T* a = w.in<T>(op.ref[1]);
  const T* b = w.in<T>(op.ref[2]);
  uint32_t carry = w.carry_;
  each_lane(mask, [&](unsigned i) {
    T in = (U & kCarryIn) ? (carry >> i & 1) : 1;
    T half = a[i] + static_cast<T>(~b[i]);
    uint32_t out = half < a[i];
    T difference = half + in;
    out |= difference < half;
    if (U & kCarryOut) carry = (carry & ~(1u << i)) | out << i;
    d[i] = difference;
  });
  if (U & kCarryOut) w.carry_ = carry;
}

template <class T, bool High, unsigned U>
void mad_carry(Warp& w, const Op& op, uint32_t mask) {
  using N = Unsigned<T>;
  N* d = w.out<N>(op.ref[0]);
  const T* a = w.in<T>(op.ref[1]);
  const T* b = w.in<T>(op.ref[2]);
  const N* c = w.in<N>(op.ref[3]);
  uint32_t carry = w.carry_;
  each_lane(mask, [&](unsigned i) {
    N in = (U & kCarryIn) ? (carry >> i & 1) : 0;
    N part = High ? static_cast<N>(MulHi<T>{}(a[i], b[i])) : static_cast<N>(MulLo<T>{}(a[i], b[i]));
    N half = part + c[i];
    uint32_t out = half < part;
    N sum = half + in;
    out |= sum < half;
    if (U & kCarryOut) carry = (carry & ~(1u << i)) | out << i;
    d[i] = sum;
  });
  if (U & kCarryOut) w.carry_ = carry;
}

template <template <class, unsigned> class H, unsigned U>
Handler carry_by_size(Type type) {
  if (!ptx::is_integer(type)) return nullptr;
  return ptx::size_of(type) == 4 ? &H<uint32_t, U>::run : ptx::size_of(type) == 8 ? &H<uint64_t, U>::run : nullptr;
}
template <class T, unsigned U>
struct AddCarry {
  static void run(Warp& w, const Op& op, uint32_t m) { add_carry<T, U>(w, op, m); }
};
template <class T, unsigned U>
struct SubCarry {
  static void run(Warp& w, const Op& op, uint32_t m) { sub_carry<T, U>(w, op, m); }
};

bool lower_addc(Lowering& l, const Instruction& i) {
  return lower_same_type(l, i,
                         i.has(Modifier::cc) ? carry_by_size<AddCarry, kCarryIn | kCarryOut>(i.type())
                                             : carry_by_size<AddCarry, kCarryIn>(i.type()),
                         2);
}
bool lower_subc(Lowering& l, const Instruction& i) {
  return lower_same_type(l, i,
                         i.has(Modifier::cc) ? carry_by_size<SubCarry, kCarryIn | kCarryOut>(i.type())
                                             : carry_by_size<SubCarry, kCarryIn>(i.type()),
                         2);
}

template <bool High, unsigned U>
Handler mad_carry_handler(Type type) {
  switch (type) {
    case Type::u32:
    case Type::b32: return &mad_carry<uint32_t, High, U>;
    case Type::s32: return &mad_carry<int32_t, High, U>;
    case Type::u64:
    case Type::b64: return &mad_carry<uint64_t, High, U>;
    case Type::s64: return &mad_carry<int64_t, High, U>;
    default: return nullptr;
  }
}

template <unsigned U>
Handler mad_carry_handler(const Instruction& i) {
  return i.has(Modifier::hi) ? mad_carry_handler<true, U>(i.type()) : mad_carry_handler<false, U>(i.type());
}

bool lower_madc(Lowering& l, const Instruction& i) {
  if (i.has(Modifier::hi) == i.has(Modifier::lo)) return false;
  return lower_same_type(
      l, i, i.has(Modifier::cc) ? mad_carry_handler<kCarryIn | kCarryOut>(i) : mad_carry_handler<kCarryIn>(i), 3);
}

bool lower_neg_abs(Lowering& l, const Instruction& i) {
  return lower_same_type(
      l, i, i.opcode == "neg" ? by_signed_type<Unary<Neg>::H>(i.type()) : by_signed_type<Unary<Abs>::H>(i.type()), 1);
}

template <class T>
struct Dot4 {
  // detail: bit 0, a is signed; bit 1, b is signed
  static void run(Warp& w, const Op& op, uint32_t m) {
    bool sa = op.detail & 1, sb = op.detail & 2;
    map3<uint32_t, uint32_t, uint32_t, uint32_t>(w, op, m, [=](uint32_t a, uint32_t b, uint32_t c) {
      for (unsigned k = 0; k < 4; ++k) {
        uint8_t x = static_cast<uint8_t>(a >> (8 * k)), y = static_cast<uint8_t>(b >> (8 * k));
        int32_t xv = sa ? static_cast<int8_t>(x) : x, yv = sb ? static_cast<int8_t>(y) : y;
        c += static_cast<uint32_t>(xv * yv);
      }
      return c;
    });
  }
};

template <bool High>
void dot2(Warp& w, const Op& op, uint32_t m) {
  bool sa = op.detail & 1, sb = op.detail & 2;
  map3<uint32_t, uint32_t, uint32_t, uint32_t>(w, op, m, [=](uint32_t a, uint32_t b, uint32_t c) {
    for (unsigned k = 0; k < 2; ++k) {
      uint16_t x = static_cast<uint16_t>(a >> (16 * k));
      uint8_t y = static_cast<uint8_t>(b >> (8 * (High ? k + 2 : k)));
      int32_t xv = sa ? static_cast<int16_t>(x) : x, yv = sb ? static_cast<int8_t>(y) : y;
      c += static_cast<uint32_t>(xv * yv);
    }
    return c;
  });
}

bool lower_dot(Lowering& l, const Instruction& i) {
  if (i.types.size() != 2 || i.operands.size() != 4) return false;
  for (Type type : i.types) {
    if (type != Type::u32 && type != Type::s32) return false;
  }
  bool four = i.opcode == "dp4a";
  if (!four && i.has(Modifier::hi) == i.has(Modifier::lo)) return false;
  Ref a = l.source(i.operands[1], Type::b32), b = l.source(i.operands[2], Type::b32),
      c = l.source(i.operands[3], Type::b32);
  Handler handler = four ? &Dot4<uint32_t>::run : i.has(Modifier::hi) ? &dot2<true> : &dot2<false>;
  l.emit(handler, {l.destination(i.operands[0], Type::b32)}, {a, b, c}).detail =
      static_cast<uint16_t>((i.type(0) == Type::s32 ? 1 : 0) | (i.type(1) == Type::s32 ? 2 : 0));
  return true;
}

// vabsdiff4, the only video instruction that nvcc's SIMD intrinsics still use. detail: bit 0, signed bytes; bit 1,
// .add.
void absolute_differences(Warp& w, const Op& op, uint32_t m) {
  bool sign = op.detail & 1, add = op.detail & 2;
  map3<uint32_t, uint32_t, uint32_t, uint32_t>(w, op, m, [=](uint32_t a, uint32_t b, uint32_t c) {
    uint32_t bytes = 0, sum = c;
    for (unsigned k = 0; k < 32; k += 8) {
      uint8_t x = static_cast<uint8_t>(a >> k), y = static_cast<uint8_t>(b >> k);
      int32_t difference = sign ? static_cast<int8_t>(x) - static_cast<int8_t>(y) : x - y;
      uint32_t magnitude = static_cast<uint32_t>(difference < 0 ? -difference : difference);
      bytes |= magnitude << k;
      sum += magnitude;
    }
    return add ? sum : bytes;
  });
}

bool lower_vabsdiff4(Lowering& l, const Instruction& i) {
  if (i.types.size() != 3 || i.operands.size() != 4 || i.type(1) != i.type(2)) return false;
  if (i.type(0) != Type::u32 || (i.type(1) != Type::u32 && i.type(1) != Type::s32)) return false;
  Ref a = l.source(i.operands[1], Type::b32), b = l.source(i.operands[2], Type::b32),
      c = l.source(i.operands[3], Type::b32);
  l.emit(&absolute_differences, {l.destination(i.operands[0], Type::b32)}, {a, b, c}).detail =
      static_cast<uint16_t>((i.type(1) == Type::s32 ? 1 : 0) | (i.has(Modifier::add) ? 2 : 0));
  return true;
}

bool lower_24(Lowering& l, const Instruction& i) {
  bool hi = i.has(Modifier::hi), mad = i.opcode == "mad24";
  if (hi == i.has(Modifier::lo)) return false;
  if (i.has(Modifier::sat)) {
    if (!mad || !hi || i.type() != Type::s32) return false;
    return lower_same_type(l, i, &ternary<int32_t, int32_t, int32_t, int32_t, Mad24HiSat>, 3);
  }
  if (mad)
    return lower_same_type(l, i,
                           hi ? by_type24<Ternary<Mad24Hi>::H>(i.type()) : by_type24<Ternary<Mad24Lo>::H>(i.type()), 3);
  return lower_same_type(l, i, hi ? by_type24<Binary<Mul24Hi>::H>(i.type()) : by_type24<Binary<Mul24Lo>::H>(i.type()),
                         2);
}

bool lower_sad(Lowering& l, const Instruction& i) {
  return lower_same_type(l, i, by_integer_type<Ternary<Sad>::H>(i.type()), 3);
}
bool lower_rem(Lowering& l, const Instruction& i) {
  return lower_same_type(l, i, by_integer_type<Binary<Rem>::H>(i.type()), 2);
}

const OpcodeEntry kOpcodes[] = {
    {"addc", ModifierSet(Modifier::cc), lower_addc},
    {"subc", ModifierSet(Modifier::cc), lower_subc},
    {"madc", ModifierSet(Modifier::cc, Modifier::hi, Modifier::lo), lower_madc},
    {"rem", ModifierSet(), lower_rem},
    {"sad", ModifierSet(), lower_sad},
    {"mul24", ModifierSet(Modifier::hi, Modifier::lo), lower_24},
    {"mad24", ModifierSet(Modifier::hi, Modifier::lo, Modifier::sat), lower_24},
    {"dp4a", ModifierSet(), lower_dot},
    {"dp2a", ModifierSet(Modifier::hi, Modifier::lo), lower_dot},
    {"vabsdiff4", ModifierSet(Modifier::add), lower_vabsdiff4},
};

// The additional modifiers of the floating-point forms of these instructions have no meaning for integers.
ModifierSet modifiers_of_integers(std::string_view name) {
  if (name == "add" || name == "sub") return ModifierSet(Modifier::cc, Modifier::sat);
  if (name == "mul") return ModifierSet(Modifier::hi, Modifier::lo, Modifier::wide);
  if (name == "mad") return ModifierSet(Modifier::hi, Modifier::lo, Modifier::wide, Modifier::sat, Modifier::cc);
  if (name == "min" || name == "max") return ModifierSet(Modifier::relu);
  return ModifierSet();
}

}  // namespace

std::span<const OpcodeEntry> integer_opcodes() { return kOpcodes; }

// add, sub, mul, mad, div, min, max, neg and abs are integer and floating-point instructions. ops_float.cpp has their
// entries and calls this function for integer types.
bool lower_integer_arithmetic(Lowering& l, const Instruction& i) {
  std::string_view name = i.opcode;
  Type type = i.type();
  if (!modifiers_of_integers(name).contains(i.modifiers)) return false;
  if (i.has(Modifier::cc)) {
    if (i.has(Modifier::sat) || i.has(Modifier::wide)) return false;
    if (name == "add") return lower_same_type(l, i, carry_by_size<AddCarry, kCarryOut>(type), 2);
    if (name == "sub") return lower_same_type(l, i, carry_by_size<SubCarry, kCarryOut>(type), 2);
    if (name != "mad" || i.has(Modifier::hi) == i.has(Modifier::lo)) return false;
    return lower_same_type(l, i, mad_carry_handler<kCarryOut>(i), 3);
  }
  bool hi = i.has(Modifier::hi), lo = i.has(Modifier::lo), wide = i.has(Modifier::wide), sat = i.has(Modifier::sat);
  if (name == "mul" || name == "mad") {
    if (hi + lo + wide != 1) return false;
    bool mad = name == "mad";
    if (sat) {
      if (!mad || !hi || type != Type::s32) return false;
      return lower_same_type(l, i, &ternary<int32_t, int32_t, int32_t, int32_t, MadHiSat>, 3);
    }
    if (!wide) {
      if (mad)
        return lower_same_type(
            l, i, hi ? by_integer_type<Ternary<MadHi>::H>(type) : by_integer_type<Ternary<MadLo>::H>(type), 3);
      return lower_same_type(l, i,
                             hi ? by_integer_type<Binary<MulHi>::H>(type) : by_integer_type<Binary<MulLo>::H>(type), 2);
    }
    if (i.types.size() != 1 || i.operands.size() != (mad ? 4u : 3u)) return false;
    Type result = ptx::bits_of_size(ptx::size_of(type) * 2);
    Ref a = l.source(i.operands[1], type), b = l.source(i.operands[2], type);
    if (mad) {
      Ref c = l.source(i.operands[3], result);
      l.emit(by_wide_type<MadWide>(type), {l.destination(i.operands[0], result)}, {a, b, c});
    } else {
      l.emit(by_wide_type<MulWide>(type), {l.destination(i.operands[0], result)}, {a, b});
    }
    return true;
  }
  if (sat) {
    if (type != Type::s32) return false;
    if (name == "add") return lower_same_type(l, i, &binary<int32_t, int32_t, int32_t, AddSat>, 2);
    if (name == "sub") return lower_same_type(l, i, &binary<int32_t, int32_t, int32_t, SubSat>, 2);
    return false;
  }
  if (i.has(Modifier::relu)) {
    if (name == "min")
      return lower_same_type(l, i, type == Type::s32 ? &binary<int32_t, int32_t, int32_t, MinRelu<int32_t>> : nullptr,
                             2);
    if (name == "max")
      return lower_same_type(l, i, type == Type::s32 ? &binary<int32_t, int32_t, int32_t, MaxRelu<int32_t>> : nullptr,
                             2);
    return false;
  }
  if (name == "add") return lower_same_type(l, i, by_integer_type<Binary<Add>::H>(type), 2);
  if (name == "sub") return lower_same_type(l, i, by_integer_type<Binary<Sub>::H>(type), 2);
  if (name == "div") return lower_same_type(l, i, by_integer_type<Binary<Div>::H>(type), 2);
  if (name == "min") return lower_same_type(l, i, by_integer_type<Binary<Min>::H>(type), 2);
  if (name == "max") return lower_same_type(l, i, by_integer_type<Binary<Max>::H>(type), 2);
  return lower_neg_abs(l, i);
}

}  // namespace gpuwire::software_device
