// Logic, shifts and bit fields: PTX ISA 9.0, sections 9.7.1 and 9.7.8.
#include <type_traits>

#include "server/software_device/execution/handlers.hpp"
#include "server/software_device/execution/lanes.hpp"

namespace gpuwire::software_device {
namespace {

using ptx::Instruction;
using ptx::Modifier;
using ptx::ModifierSet;
using ptx::Operand;
using ptx::Type;

struct BitAnd {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct BitOr {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct BitXor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

template <class F>
struct Logic {
  template <class T>
  struct H {
    static void run(Warp& w, const Op& op, uint32_t m) { map2<T, T, T>(w, op, m, F{}); }
  };
};
template <class F>
void predicate_logic(Warp& w, const Op& op, uint32_t m) {
  w.set_predicate(op.ref[0], m, F{}(w.predicate(op.ref[1]), w.predicate(op.ref[2])));
}
template <class T>
struct Not {
  static void run(Warp& w, const Op& op, uint32_t m) {
    map1<T, T>(w, op, m, [](T a) { return static_cast<T>(~a); });
  }
};
template <class T>
struct CNot {
  static void run(Warp& w, const Op& op, uint32_t m) {
    map1<T, T>(w, op, m, [](T a) { return static_cast<T>(a == 0); });
  }
};

bool takes_bits(Type type) { return ptx::is_integer(type) || type == Type::f16x2 || type == Type::bf16x2; }

bool lower_logic(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1) return false;
  char which = i.opcode[0];
  if (i.type() == Type::pred) {
    if (i.operands.size() != 3) return false;
    Ref a = l.predicate_source(i.operands[1]), b = l.predicate_source(i.operands[2]);
    Handler handler = which == 'a'   ? &predicate_logic<BitAnd>
                      : which == 'o' ? &predicate_logic<BitOr>
                                     : &predicate_logic<BitXor>;
    l.emit(handler, {l.predicate_destination(i.operands[0])}, {a, b});
    return true;
  }
  if (!takes_bits(i.type())) return false;
  Handler handler = which == 'a'   ? by_unsigned_size<Logic<BitAnd>::H>(i.type())
                    : which == 'o' ? by_unsigned_size<Logic<BitOr>::H>(i.type())
                                   : by_unsigned_size<Logic<BitXor>::H>(i.type());
  return lower_same_type(l, i, handler, 2);
}

bool lower_not(Lowering& l, const Instruction& i) {
  if (i.type() != Type::pred)
    return lower_same_type(l, i, takes_bits(i.type()) ? by_unsigned_size<Not>(i.type()) : nullptr, 1);
  if (i.operands.size() != 2) return false;
  Ref a = l.predicate_source(i.operands[1]);
  l.emit(&handle_predicate_not, {l.predicate_destination(i.operands[0])}, {a});
  return true;
}

bool lower_cnot(Lowering& l, const Instruction& i) {
  return lower_same_type(l, i, ptx::is_integer(i.type()) ? by_unsigned_size<CNot>(i.type()) : nullptr, 1);
}

// Shift amounts above the width are clamped to the width.
template <class T>
struct ShiftLeft {
  static void run(Warp& w, const Op& op, uint32_t m) {
    constexpr uint32_t kBits = 8 * sizeof(T);
    map2<T, T, uint32_t>(w, op, m, [](T a, uint32_t b) {
      return b >= kBits ? T(0) : static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << b);
    });
  }
};
template <class T>
struct ShiftRight {
  static void run(Warp& w, const Op& op, uint32_t m) {
    constexpr uint32_t kBits = 8 * sizeof(T);
    map2<T, T, uint32_t>(w, op, m, [](T a, uint32_t b) {
      if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> (b >= kBits ? kBits - 1 : b));
      else return b >= kBits ? T(0) : static_cast<T>(a >> b);
    });
  }
};

bool lower_shift(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.operands.size() != 3) return false;
  Ref a = l.source(i.operands[1], i.type()), b = l.source(i.operands[2], Type::b32);
  Handler handler = i.opcode == "shl" ? by_integer_type<ShiftLeft>(i.type()) : by_integer_type<ShiftRight>(i.type());
  l.emit(handler, {l.destination(i.operands[0], i.type())}, {a, b});
  return true;
}

// refs: d, a (low word), b (high word), c. detail: bit 0 right, bit 1 clamp.
void funnel_shift(Warp& w, const Op& op, uint32_t m) {
  bool right = op.detail & 1, clamp = op.detail & 2;
  map3<uint32_t, uint32_t, uint32_t, uint32_t>(w, op, m, [=](uint32_t a, uint32_t b, uint32_t c) {
    uint32_t n = clamp ? (c > 32 ? 32 : c) : c & 31;
    uint64_t both = uint64_t{b} << 32 | a;
    return right ? static_cast<uint32_t>(both >> n) : static_cast<uint32_t>((both << n) >> 32);
  });
}

bool lower_shf(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.has(Modifier::l) == i.has(Modifier::r) ||
      i.has(Modifier::clamp) == i.has(Modifier::wrap))
    return false;
  if (!lower_same_type(l, i, i.type() == Type::b32 ? &funnel_shift : nullptr, 3)) return false;
  l.target().ops.back().detail = static_cast<uint16_t>((i.has(Modifier::r) ? 1 : 0) | (i.has(Modifier::clamp) ? 2 : 0));
  return true;
}

void lop3(Warp& w, const Op& op, uint32_t m) {
  uint32_t term[8];
  for (unsigned k = 0; k < 8; ++k) term[k] = op.detail >> k & 1 ? 0xffffffffu : 0;
  map3<uint32_t, uint32_t, uint32_t, uint32_t>(w, op, m, [&](uint32_t a, uint32_t b, uint32_t c) {
    return (~a & ~b & ~c & term[0]) | (~a & ~b & c & term[1]) | (~a & b & ~c & term[2]) | (~a & b & c & term[3]) |
           (a & ~b & ~c & term[4]) | (a & ~b & c & term[5]) | (a & b & ~c & term[6]) | (a & b & c & term[7]);
  });
}

bool lower_lop3(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.type() != Type::b32 || i.operands.size() != 5 ||
      i.operands[4].kind != Operand::Kind::integer)
    return false;
  if (i.operands[4].value > 255) return l.invalid("lop3's table has 8 bits");
  Ref a = l.source(i.operands[1], Type::b32), b = l.source(i.operands[2], Type::b32),
      c = l.source(i.operands[3], Type::b32);
  l.emit(&lop3, {l.destination(i.operands[0], Type::b32)}, {a, b, c}).detail =
      static_cast<uint16_t>(i.operands[4].value);
  return true;
}

template <class T>
uint32_t leading_zeros(T a) {
  return a == 0 ? 8 * sizeof(T) : static_cast<uint32_t>(std::countl_zero(a));
}

template <class T>
struct Popc {
  static void run(Warp& w, const Op& op, uint32_t m) {
    map1<uint32_t, T>(w, op, m, [](T a) { return static_cast<uint32_t>(std::popcount(a)); });
  }
};
template <class T>
struct Clz {
  static void run(Warp& w, const Op& op, uint32_t m) {
    map1<uint32_t, T>(w, op, m, [](T a) { return leading_zeros(a); });
  }
};
template <class T>
struct Brev {
  static void run(Warp& w, const Op& op, uint32_t m) {
    map1<T, T>(w, op, m, [](T a) {
      uint64_t v = a;
      v = (v & 0x5555555555555555) << 1 | (v >> 1 & 0x5555555555555555);
      v = (v & 0x3333333333333333) << 2 | (v >> 2 & 0x3333333333333333);
      v = (v & 0x0f0f0f0f0f0f0f0f) << 4 | (v >> 4 & 0x0f0f0f0f0f0f0f0f);
      return static_cast<T>(__builtin_bswap64(v) >> (64 - 8 * sizeof(T)));
    });
  }
};

template <template <class> class H>
Handler by_word(Type type) {
  return type == Type::b32 ? &H<uint32_t>::run : type == Type::b64 ? &H<uint64_t>::run : nullptr;
}

bool lower_count(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.operands.size() != 2) return false;
  Ref a = l.source(i.operands[1], i.type());
  l.emit(i.opcode == "popc" ? by_word<Popc>(i.type()) : by_word<Clz>(i.type()),
         {l.destination(i.operands[0], Type::b32)}, {a});
  return true;
}

bool lower_brev(Lowering& l, const Instruction& i) { return lower_same_type(l, i, by_word<Brev>(i.type()), 1); }

template <class T>
struct Bfind {
  // detail: 1 for .shiftamt
  static void run(Warp& w, const Op& op, uint32_t m) {
    bool amount = op.detail;
    map1<uint32_t, T>(w, op, m, [=](T a) {
      using U = std::make_unsigned_t<T>;
      U v = std::is_signed_v<T> && a < 0 ? static_cast<U>(~a) : static_cast<U>(a);
      uint32_t zeros = leading_zeros(v);
      if (zeros == 8 * sizeof(T)) return 0xffffffffu;
      return amount ? zeros : static_cast<uint32_t>(8 * sizeof(T) - 1 - zeros);
    });
  }
};

bool lower_bfind(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.operands.size() != 2 || ptx::size_of(i.type()) < 4) return false;
  Ref a = l.source(i.operands[1], i.type());
  l.emit(by_integer_type<Bfind>(i.type()), {l.destination(i.operands[0], Type::b32)}, {a}).detail =
      i.has(Modifier::shiftamt);
  return true;
}

// Position and length are the lowest bytes of their operands (PTX ISA, bfe).
template <class T>
struct Bfe {
  static void run(Warp& w, const Op& op, uint32_t m) {
    using U = std::make_unsigned_t<T>;
    constexpr uint32_t kTop = 8 * sizeof(T) - 1;
    map3<T, T, uint32_t, uint32_t>(w, op, m, [](T a, uint32_t b, uint32_t c) {
      uint32_t position = b & 0xff, length = c & 0xff;
      uint32_t last = position + length - 1 < kTop ? position + length - 1 : kTop;
      bool sign = std::is_signed_v<T> && length != 0 && (static_cast<U>(a) >> last & 1);
      U field = position > kTop ? U(0) : static_cast<U>(static_cast<U>(a) >> position);
      U mask = length > kTop ? static_cast<U>(~U(0)) : static_cast<U>((U(1) << length) - 1);
      field &= mask;
      // The bits above the field, and above the operand's end, are copies of the sign.
      uint32_t given = position > kTop ? 0 : (length < kTop + 1 - position ? length : kTop + 1 - position);
      if (sign) field |= given > kTop ? U(0) : static_cast<U>(~U(0) << given);
      return static_cast<T>(length == 0 ? U(0) : field);
    });
  }
};

bool lower_bfe(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.operands.size() != 4 || ptx::size_of(i.type()) < 4 || ptx::is_bits(i.type()))
    return false;
  Ref a = l.source(i.operands[1], i.type()), b = l.source(i.operands[2], Type::b32),
      c = l.source(i.operands[3], Type::b32);
  l.emit(by_integer_type<Bfe>(i.type()), {l.destination(i.operands[0], i.type())}, {a, b, c});
  return true;
}

// refs: f, a, b, c, d
template <class T>
struct Bfi {
  static void run(Warp& w, const Op& op, uint32_t mask) {
    constexpr uint32_t kBits = 8 * sizeof(T);
    T* f = w.out<T>(op.ref[0]);
    const T* a = w.in<T>(op.ref[1]);
    const T* b = w.in<T>(op.ref[2]);
    const uint32_t* c = w.in<uint32_t>(op.ref[3]);
    const uint32_t* d = w.in<uint32_t>(op.ref[4]);
    each_lane(mask, [&](unsigned i) {
      uint32_t position = c[i] & 0xff, length = d[i] & 0xff;
      T ones = length >= kBits ? ~T(0) : (T(1) << length) - 1;
      T field = position >= kBits ? T(0) : ones << position;
      T value = position >= kBits ? T(0) : a[i] << position;
      f[i] = (b[i] & ~field) | (value & field);
    });
  }
};

bool lower_bfi(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.operands.size() != 5) return false;
  Ref a = l.source(i.operands[1], i.type()), b = l.source(i.operands[2], i.type());
  Ref c = l.source(i.operands[3], Type::b32), d = l.source(i.operands[4], Type::b32);
  l.emit(by_word<Bfi>(i.type()), {l.destination(i.operands[0], i.type())}, {a, b, c, d});
  return true;
}

// Find n-th set: PTX ISA 9.7.1.20.
uint32_t find_nth_set(uint32_t mask, uint32_t base, int32_t offset) {
  if (base > 31) return 0xffffffffu;
  if (offset == 0) return mask >> base & 1 ? base : 0xffffffffu;
  int32_t position = static_cast<int32_t>(base);
  int32_t count = offset > 0 ? offset - 1 : -offset - 1, step = offset > 0 ? 1 : -1;
  for (; position >= 0 && position < 32; position += step) {
    if (!(mask >> position & 1)) continue;
    if (count == 0) return static_cast<uint32_t>(position);
    --count;
  }
  return 0xffffffffu;
}

struct Fns {
  uint32_t operator()(uint32_t m, uint32_t base, int32_t offset) const {
    return find_nth_set(m, base, offset == INT32_MIN ? -64 : offset);
  }
};

bool lower_fns(Lowering& l, const Instruction& i) {
  return lower_same_type(l, i, i.type() == Type::b32 ? &ternary<uint32_t, uint32_t, uint32_t, int32_t, Fns> : nullptr,
                         3);
}

uint32_t selected_byte(uint64_t bytes, uint32_t selector) {
  uint32_t byte = bytes >> (8 * (selector & 7)) & 0xff;
  if (selector & 8) return byte & 0x80 ? 0xff : 0;
  return byte;
}

struct Permute {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const {
    uint64_t bytes = uint64_t{b} << 32 | a;
    uint32_t d = 0;
    for (unsigned k = 0; k < 4; ++k) d |= selected_byte(bytes, c >> (4 * k) & 15) << (8 * k);
    return d;
  }
};

// Selectors of the special modes, by c's two lowest bits, byte 0 in the lowest digit (PTX ISA, prmt).
constexpr uint16_t kForward4[4] = {0x3210, 0x4321, 0x5432, 0x6543};
constexpr uint16_t kBackward4[4] = {0x5670, 0x6701, 0x7012, 0x0123};
constexpr uint16_t kReplicate8[4] = {0x0000, 0x1111, 0x2222, 0x3333};
constexpr uint16_t kEdgeLeft[4] = {0x3210, 0x3211, 0x3222, 0x3333};
constexpr uint16_t kEdgeRight[4] = {0x0000, 0x1110, 0x2210, 0x3210};
constexpr uint16_t kReplicate16[4] = {0x1010, 0x3232, 0x1010, 0x3232};

template <const uint16_t (&Table)[4]>
struct PermuteMode {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const { return Permute{}(a, b, Table[c & 3]); }
};

template <class F>
constexpr Handler kTernary32 = &ternary<uint32_t, uint32_t, uint32_t, uint32_t, F>;

bool lower_prmt(Lowering& l, const Instruction& i) {
  if (i.type() != Type::b32) return false;
  Handler handler = kTernary32<Permute>;
  if (i.has(Modifier::f4e)) handler = kTernary32<PermuteMode<kForward4>>;
  if (i.has(Modifier::b4e)) handler = kTernary32<PermuteMode<kBackward4>>;
  if (i.has(Modifier::rc8)) handler = kTernary32<PermuteMode<kReplicate8>>;
  if (i.has(Modifier::ecl)) handler = kTernary32<PermuteMode<kEdgeLeft>>;
  if (i.has(Modifier::ecr)) handler = kTernary32<PermuteMode<kEdgeRight>>;
  if (i.has(Modifier::rc16)) handler = kTernary32<PermuteMode<kReplicate16>>;
  return lower_same_type(l, i, handler, 3);
}

// detail: 1 for .clamp, else .wrap
template <class T>
void extend(Warp& w, const Op& op, uint32_t m) {
  bool clamp = op.detail;
  map2<T, T, uint32_t>(w, op, m, [=](T a, uint32_t b) {
    uint32_t n = clamp ? b : b & 31;
    if (n == 0) return T(0);
    if (n >= 32) return a;
    return static_cast<T>(static_cast<T>(static_cast<uint32_t>(a) << (32 - n)) >> (32 - n));
  });
}

bool lower_szext(Lowering& l, const Instruction& i) {
  if (i.has(Modifier::clamp) == i.has(Modifier::wrap)) return false;
  if (!lower_same_type(l, i,
                       i.type() == Type::u32   ? &extend<uint32_t>
                       : i.type() == Type::s32 ? &extend<int32_t>
                                               : nullptr,
                       2))
    return false;
  l.target().ops.back().detail = i.has(Modifier::clamp);
  return true;
}

void bit_mask(Warp& w, const Op& op, uint32_t m) {
  bool clamp = op.detail;
  map2<uint32_t, uint32_t, uint32_t>(w, op, m, [=](uint32_t a, uint32_t b) {
    uint32_t first = clamp ? a : a & 31, width = clamp ? b : b & 31;
    uint64_t ones = width >= 32 ? 0xffffffffu : (uint64_t{1} << width) - 1;
    return first >= 32 ? 0u : static_cast<uint32_t>(ones << first);
  });
}

bool lower_bmsk(Lowering& l, const Instruction& i) {
  if (i.has(Modifier::clamp) == i.has(Modifier::wrap)) return false;
  if (!lower_same_type(l, i, i.type() == Type::b32 ? &bit_mask : nullptr, 2)) return false;
  l.target().ops.back().detail = i.has(Modifier::clamp);
  return true;
}

constexpr ModifierSet kClampWrap(Modifier::clamp, Modifier::wrap);

const OpcodeEntry kOpcodes[] = {
    {"and", ModifierSet(), lower_logic},
    {"or", ModifierSet(), lower_logic},
    {"xor", ModifierSet(), lower_logic},
    {"not", ModifierSet(), lower_not},
    {"cnot", ModifierSet(), lower_cnot},
    {"shl", ModifierSet(), lower_shift},
    {"shr", ModifierSet(), lower_shift},
    {"shf", kClampWrap | ModifierSet(Modifier::l, Modifier::r), lower_shf},
    {"lop3", ModifierSet(), lower_lop3},
    {"popc", ModifierSet(), lower_count},
    {"clz", ModifierSet(), lower_count},
    {"brev", ModifierSet(), lower_brev},
    {"bfind", ModifierSet(Modifier::shiftamt), lower_bfind},
    {"bfe", ModifierSet(), lower_bfe},
    {"bfi", ModifierSet(), lower_bfi},
    {"fns", ModifierSet(), lower_fns},
    {"prmt", ModifierSet(Modifier::f4e, Modifier::b4e, Modifier::rc8, Modifier::ecl, Modifier::ecr, Modifier::rc16),
     lower_prmt},
    {"szext", kClampWrap, lower_szext},
    {"bmsk", kClampWrap, lower_bmsk},
};

}  // namespace

std::span<const OpcodeEntry> bit_opcodes() { return kOpcodes; }

}  // namespace gpuwire::software_device
