// Comparison and selection: PTX ISA 9.0, sections 9.7.6 and 9.7.7 (half precision).
#include <cmath>

#include "server/software_device/execution/float_formats.hpp"
#include "server/software_device/execution/handlers.hpp"
#include "server/software_device/execution/lanes.hpp"

namespace gpuwire::software_device {
namespace {

using ptx::Instruction;
using ptx::Modifier;
using ptx::ModifierSet;
using ptx::Operand;
using ptx::Type;

enum class Compare : uint8_t { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };

template <Compare C, class T>
struct Test {
  bool operator()(T a, T b) const {
    if constexpr (C == Compare::eq) return a == b;
    else if constexpr (C == Compare::ne) return a < b || a > b;  // ordered: false when either is a NaN
    else if constexpr (C == Compare::lt) return a < b;
    else if constexpr (C == Compare::le) return a <= b;
    else if constexpr (C == Compare::gt) return a > b;
    else if constexpr (C == Compare::ge) return a >= b;
    else if constexpr (C == Compare::equ) return !(a < b || a > b);
    else if constexpr (C == Compare::neu) return !(a == b);
    else if constexpr (C == Compare::ltu) return !(a >= b);
    else if constexpr (C == Compare::leu) return !(a > b);
    else if constexpr (C == Compare::gtu) return !(a <= b);
    else if constexpr (C == Compare::geu) return !(a < b);
    else if constexpr (C == Compare::num) return a == a && b == b;
    else return !(a == a && b == b);
  }
};

// The type of a stored value and the operation that compares it.
template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  static Value value(Stored s) { return s; }
};
struct FlushedFloat {
  using Stored = float;
  using Value = float;
  static Value value(Stored s) { return flush(s); }
};
struct Half {
  using Stored = uint16_t;
  using Value = float;
  static Value value(Stored s) { return half_to_float(s); }
};
struct FlushedHalf {
  using Stored = uint16_t;
  using Value = float;
  static Value value(Stored s) { return half_to_float(flush_half(s)); }
};
struct Brain {
  using Stored = uint16_t;
  using Value = float;
  static Value value(Stored s) { return brain_to_float(s); }
};

// detail of setp: how the result is combined with a predicate
enum Combine : uint16_t { kNone, kAnd, kOr, kXor };

uint32_t combined(uint16_t how, uint32_t bits, uint32_t with) {
  return how == kAnd ? bits & with : how == kOr ? bits | with : how == kXor ? bits ^ with : bits;
}

template <class K, Compare C>
uint32_t compare(Warp& w, Ref a, Ref b, uint32_t mask) {
  using S = typename K::Stored;
  return compare_lanes(w.in<S>(a), w.in<S>(b), w.whole(mask), mask,
                       [](S x, S y) { return Test<C, typename K::Value>{}(K::value(x), K::value(y)); });
}

// refs: p, q, a, b, c
template <class K, Compare C>
void set_predicates(Warp& w, const Op& op, uint32_t mask) {
  uint32_t bits = compare<K, C>(w, op.ref[2], op.ref[3], mask);
  uint32_t with = op.detail == kNone ? 0 : w.predicate(op.ref[4]);
  w.set_predicate(op.ref[0], mask, combined(op.detail, bits, with));
  if (op.count == 2) w.set_predicate(op.ref[1], mask, combined(op.detail, ~bits, with));
}

template <Compare C>
Handler setp_by_type(Type type, bool ftz) {
  switch (type) {
    case Type::b16:
    case Type::u16: return &set_predicates<Plain<uint16_t>, C>;
    case Type::b32:
    case Type::u32: return &set_predicates<Plain<uint32_t>, C>;
    case Type::b64:
    case Type::u64: return &set_predicates<Plain<uint64_t>, C>;
    case Type::s16: return &set_predicates<Plain<int16_t>, C>;
    case Type::s32: return &set_predicates<Plain<int32_t>, C>;
    case Type::s64: return &set_predicates<Plain<int64_t>, C>;
    case Type::f32: return ftz ? &set_predicates<FlushedFloat, C> : &set_predicates<Plain<float>, C>;
    case Type::f64: return &set_predicates<Plain<double>, C>;
    case Type::f16: return ftz ? &set_predicates<FlushedHalf, C> : &set_predicates<Half, C>;
    case Type::bf16: return &set_predicates<Brain, C>;
    default: return nullptr;
  }
}

// Unordered comparisons exist only for floating-point types.
template <Compare C>
Handler setp_float(Type type, bool ftz) {
  switch (type) {
    case Type::f32:
    case Type::f64:
    case Type::f16:
    case Type::bf16: return setp_by_type<C>(type, ftz);
    default: return nullptr;
  }
}

struct CompareRow {
  Modifier modifier;
  Handler (*choose)(Type, bool);
  bool unsigned_only = false;
};

constexpr CompareRow kCompares[] = {
    {Modifier::eq, setp_by_type<Compare::eq>},       {Modifier::ne, setp_by_type<Compare::ne>},
    {Modifier::lt, setp_by_type<Compare::lt>},       {Modifier::le, setp_by_type<Compare::le>},
    {Modifier::gt, setp_by_type<Compare::gt>},       {Modifier::ge, setp_by_type<Compare::ge>},
    {Modifier::lo, setp_by_type<Compare::lt>, true}, {Modifier::ls, setp_by_type<Compare::le>, true},
    {Modifier::hi, setp_by_type<Compare::gt>, true}, {Modifier::hs, setp_by_type<Compare::ge>, true},
    {Modifier::equ, setp_float<Compare::equ>},       {Modifier::neu, setp_float<Compare::neu>},
    {Modifier::ltu, setp_float<Compare::ltu>},       {Modifier::leu, setp_float<Compare::leu>},
    {Modifier::gtu, setp_float<Compare::gtu>},       {Modifier::geu, setp_float<Compare::geu>},
    {Modifier::num, setp_float<Compare::num>},       {Modifier::nan, setp_float<Compare::nan>},
};

Handler compare_handler(const Instruction& i, Type type) {
  if (i.has(Modifier::ftz) && type != Type::f32 && type != Type::f16) return nullptr;
  for (const CompareRow& row : kCompares) {
    if (!i.has(row.modifier)) continue;
    if (row.unsigned_only && !ptx::is_unsigned(type)) return nullptr;
    return row.choose(type, i.has(Modifier::ftz));
  }
  return nullptr;
}

uint16_t combine_of(const Instruction& i) {
  return i.has(Modifier::and_) ? kAnd : i.has(Modifier::or_) ? kOr : i.has(Modifier::xor_) ? kXor : kNone;
}

Type scalar_of(Type type) { return type == Type::f16x2 ? Type::f16 : type == Type::bf16x2 ? Type::bf16 : type; }

// Copies the halves of a packed register to registers of their own.
void split(Lowering& l, Ref packed, Ref& low, Ref& high) {
  low = l.temporary(2);
  high = l.temporary(2);
  l.emit(resize_handler(4, 2, false), {low}, {packed});
  l.emit(high_half_handler(), {high}, {packed});
}

bool lower_setp(Lowering& l, const Instruction& i) {
  uint16_t combine = combine_of(i);
  if (i.types.size() != 1 || i.operands.size() != (combine == kNone ? 3u : 4u)) return false;
  bool pair = i.operands[0].kind == Operand::Kind::pair;
  const Operand& first = pair ? i.operands[0].elements[0] : i.operands[0];
  Ref a = l.source(i.operands[1], i.type()), b = l.source(i.operands[2], i.type());
  Ref c = combine == kNone ? Ref() : l.predicate_source(i.operands[3]);
  Ref p = l.predicate_destination(first);
  Ref q = pair ? l.predicate_destination(i.operands[0].elements[1]) : l.temporary(kPredicateClass);
  Type type = scalar_of(i.type());
  Handler handler = compare_handler(i, type);
  if (type == i.type()) {
    Op& op = l.emit(handler, {p, q}, {a, b, c});
    op.detail = combine;
    op.count = pair ? 2 : 1;
    if (combine == kNone) op.ref[4] = Ref();
    l.keep_apart();
    return true;
  }
  // Packed types have one predicate for each half.
  if (!pair) return false;
  Ref al, ah, bl, bh;
  split(l, a, al, ah);
  split(l, b, bl, bh);
  l.emit(handler, {p, l.temporary(kPredicateClass)}, {al, bl, c}).detail = combine;
  l.keep_apart();
  l.emit(handler, {q, l.temporary(kPredicateClass)}, {ah, bh, c}).detail = combine;
  l.keep_apart();
  return true;
}

template <class T>
struct Select {
  // refs: d, a, b, p
  static void run(Warp& w, const Op& op, uint32_t mask) {
    T* d = w.out<T>(op.ref[0]);
    const T* a = w.in<T>(op.ref[1]);
    const T* b = w.in<T>(op.ref[2]);
    uint32_t p = w.predicate(op.ref[3]);
    if (w.whole(mask)) {
#pragma GCC ivdep
      for (unsigned i = 0; i < kLanes; ++i) d[i] = p >> i & 1 ? a[i] : b[i];
    } else {
      each_lane(mask, [&](unsigned i) { d[i] = p >> i & 1 ? a[i] : b[i]; });
    }
  }
};

bool lower_selp(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.operands.size() != 4 || i.type() == Type::pred) return false;
  Ref a = l.source(i.operands[1], i.type()), b = l.source(i.operands[2], i.type()),
      p = l.predicate_source(i.operands[3]);
  l.emit(by_unsigned_size<Select>(i.type()), {l.destination(i.operands[0], i.type())}, {a, b, p});
  return true;
}

// set.cmp.dtype.stype: all ones or 1.0 where true, else zero.
bool lower_set(Lowering& l, const Instruction& i) {
  uint16_t combine = combine_of(i);
  if (i.types.size() != 2 || i.operands.size() != (combine == kNone ? 3u : 4u)) return false;
  Type to = i.type(0), from = i.type(1), type = scalar_of(from);
  Ref a = l.source(i.operands[1], from), b = l.source(i.operands[2], from);
  Ref c = combine == kNone ? Ref() : l.predicate_source(i.operands[3]);
  uint64_t yes = 0;
  switch (scalar_of(to)) {
    case Type::u16:
    case Type::s16: yes = 0xffff; break;
    case Type::u32:
    case Type::s32: yes = 0xffffffff; break;
    case Type::f32: yes = 0x3f800000; break;
    case Type::f16: yes = 0x3c00; break;
    case Type::bf16: yes = 0x3f80; break;
    default: return false;
  }
  Handler handler = compare_handler(i, type);
  auto one = [&](Ref x, Ref y, uint32_t bytes, Ref d) {
    Ref p = l.temporary(kPredicateClass);
    l.emit(handler, {p, l.temporary(kPredicateClass)}, {x, y, c}).detail = combine;
    l.keep_apart();
    l.emit(by_unsigned_size<Select>(ptx::bits_of_size(bytes)), {d}, {l.constant(yes, bytes), l.constant(0, bytes), p});
  };
  if (type == from) {
    if (to != scalar_of(to)) return false;
    one(a, b, ptx::size_of(to), l.destination(i.operands[0], to));
    return true;
  }
  Ref al, ah, bl, bh, low = l.temporary(2), high = l.temporary(2);
  if (to != from && to != Type::u32 && to != Type::s32) return false;
  if (to != from) yes = 0xffff;
  split(l, a, al, ah);
  split(l, b, bl, bh);
  one(al, bl, 2, low);
  one(ah, bh, 2, high);
  l.emit(join_halves_handler(), {l.destination(i.operands[0], to)}, {low, high});
  return true;
}

// d = c >= 0 ? a : b
template <class T, class C>
void select_by_sign(Warp& w, const Op& op, uint32_t m) {
  map3<T, T, T, C>(w, op, m, [](T a, T b, C c) { return c >= 0 ? a : b; });
}
template <class T>
void select_by_sign_flushed(Warp& w, const Op& op, uint32_t m) {
  map3<T, T, T, float>(w, op, m, [](T a, T b, float c) { return flush(c) >= 0 ? a : b; });
}
template <class T>
struct Slct {
  static Handler choose(Type c, bool ftz) {
    if (c == Type::s32) return &select_by_sign<T, int32_t>;
    if (c == Type::f32) return ftz ? &select_by_sign_flushed<T> : &select_by_sign<T, float>;
    return nullptr;
  }
};

bool lower_slct(Lowering& l, const Instruction& i) {
  if (i.types.size() != 2 || i.operands.size() != 4) return false;
  Ref a = l.source(i.operands[1], i.type()), b = l.source(i.operands[2], i.type()),
      c = l.source(i.operands[3], i.type(1));
  bool ftz = i.has(Modifier::ftz);
  uint32_t bytes = ptx::size_of(i.type());
  Handler handler = bytes == 2   ? Slct<uint16_t>::choose(i.type(1), ftz)
                    : bytes == 4 ? Slct<uint32_t>::choose(i.type(1), ftz)
                    : bytes == 8 ? Slct<uint64_t>::choose(i.type(1), ftz)
                                 : nullptr;
  l.emit(handler, {l.destination(i.operands[0], i.type())}, {a, b, c});
  return true;
}

constexpr ModifierSet kComparisons(Modifier::eq, Modifier::ne, Modifier::lt, Modifier::le, Modifier::gt, Modifier::ge,
                                   Modifier::lo, Modifier::ls, Modifier::hi, Modifier::hs, Modifier::equ, Modifier::neu,
                                   Modifier::ltu, Modifier::leu, Modifier::gtu, Modifier::geu, Modifier::num,
                                   Modifier::nan, Modifier::ftz, Modifier::and_, Modifier::or_, Modifier::xor_);

const OpcodeEntry kOpcodes[] = {
    {"setp", kComparisons, lower_setp},
    {"set", kComparisons, lower_set},
    {"selp", ModifierSet(), lower_selp},
    {"slct", ModifierSet(Modifier::ftz), lower_slct},
};

}  // namespace

std::span<const OpcodeEntry> compare_opcodes() { return kOpcodes; }

}  // namespace gpuwire::software_device
