// atom and red: PTX ISA 9.0, sections 9.7.13.14 and 9.7.13.15. Every operation is a sequentially consistent operation
// of the host, which is as strong as any .sem and .scope requires.
#include <cstring>
#include <type_traits>

#include "server/software_device/execution/float_formats.hpp"
#include "server/software_device/execution/memory_access.hpp"

namespace gpuwire::software_device {
namespace {

using ptx::Instruction;
using ptx::Modifier;
using ptx::ModifierSet;
using ptx::Operand;
using ptx::Space;
using ptx::Type;

template <class T>
using Wrapping = std::make_unsigned_t<T>;

// Compute new values from old ones. `a` and `b` are the operands; only cas has a `b`.
struct Exchange {
  template <class T>
  static T apply(T, T a, T) {
    return a;
  }
};
struct CompareSwap {
  template <class T>
  static T apply(T old, T a, T b) {
    return old == a ? b : old;
  }
};
struct And {
  template <class T>
  static T apply(T old, T a, T) {
    return static_cast<T>(old & a);
  }
};
struct Or {
  template <class T>
  static T apply(T old, T a, T) {
    return static_cast<T>(old | a);
  }
};
struct Xor {
  template <class T>
  static T apply(T old, T a, T) {
    return static_cast<T>(old ^ a);
  }
};
struct AddWrap {
  template <class T>
  static T apply(T old, T a, T) {
    return static_cast<T>(Wrapping<T>(old) + Wrapping<T>(a));
  }
};
struct Increment {
  template <class T>
  static T apply(T old, T a, T) {
    return old >= a ? T(0) : static_cast<T>(old + 1);
  }
};
struct Decrement {
  template <class T>
  static T apply(T old, T a, T) {
    return old == 0 || old > a ? a : static_cast<T>(old - 1);
  }
};
struct Minimum {
  template <class T>
  static T apply(T old, T a, T) {
    return a < old ? a : old;
  }
};
struct Maximum {
  template <class T>
  static T apply(T old, T a, T) {
    return old < a ? a : old;
  }
};

// f32 flushes subnormals in global memory but not in shared memory (PTX ISA, atom).
struct AddFloat {
  static uint32_t apply(uint32_t old, uint32_t a, uint32_t) {
    return std::bit_cast<uint32_t>(canonical(std::bit_cast<float>(old) + std::bit_cast<float>(a)));
  }
};
struct AddFloatFlushed {
  static uint32_t apply(uint32_t old, uint32_t a, uint32_t) {
    return std::bit_cast<uint32_t>(canonical(flush(flush(std::bit_cast<float>(old)) + flush(std::bit_cast<float>(a)))));
  }
};
struct AddDouble {
  static uint64_t apply(uint64_t old, uint64_t a, uint64_t) {
    return std::bit_cast<uint64_t>(std::bit_cast<double>(old) + std::bit_cast<double>(a));
  }
};
template <class Format>
struct AddSmall {
  static uint16_t apply(uint16_t old, uint16_t a, uint16_t) {
    return Format::encode(Format::decode(old) + Format::decode(a));
  }
};
template <class Format>
struct AddPair {
  static uint32_t apply(uint32_t old, uint32_t a, uint32_t) {
    uint32_t low = AddSmall<Format>::apply(static_cast<uint16_t>(old), static_cast<uint16_t>(a), 0);
    uint32_t high = AddSmall<Format>::apply(static_cast<uint16_t>(old >> 16), static_cast<uint16_t>(a >> 16), 0);
    return high << 16 | low;
  }
};

template <class T, class F>
T update(T* place, T a, T b) {
  T old = __atomic_load_n(place, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(place, &old, F::template apply<T>(old, a, b), false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST)) {}
  return old;
}

// The operations that the processor has as one instruction.
template <class T, class F>
T atomic_update(T* place, T a, T b) {
  if constexpr (std::is_same_v<F, AddWrap>) return __atomic_fetch_add(place, a, __ATOMIC_SEQ_CST);
  else if constexpr (std::is_same_v<F, Exchange>) return __atomic_exchange_n(place, a, __ATOMIC_SEQ_CST);
  else if constexpr (std::is_same_v<F, CompareSwap>) {
    __atomic_compare_exchange_n(place, &a, b, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return a;
  } else {
    return update<T, F>(place, a, b);
  }
}

// The non-template forms of apply, under the template's name.
template <class F>
struct Plain {
  template <class T>
  static T apply(T old, T a, T b) {
    return F::apply(old, a, b);
  }
};

// refs: [result], address, a, [b]
template <Space S, class A, class T, class F>
void atomic(Warp& w, const Op& op, uint32_t mask) {
  const Ref* source = op.ref + op.definitions;
  uint8_t* pointer[kLanes];
  if (!resolve<S, A>(w, op, mask, w.in<A>(source[0]), sizeof(T), AccessKind::atomic, pointer)) return;
  const T* a = w.in<T>(source[1]);
  const T* b = op.count == 2 ? w.in<T>(source[2]) : a;
  T* d = op.definitions ? w.out<T>(op.ref[0]) : nullptr;
  each_lane(mask, [&](unsigned i) {
    T old = atomic_update<T, F>(reinterpret_cast<T*>(pointer[i]), a[i], b[i]);
    if (d != nullptr) d[i] = old;
  });
}

template <class T, class F>
Handler in_space(Space space, bool narrow) {
  switch (space) {
    case Space::shared: return narrow ? &atomic<Space::shared, uint32_t, T, F> : &atomic<Space::shared, uint64_t, T, F>;
    case Space::global: return &atomic<Space::global, uint64_t, T, F>;
    case Space::generic: return &atomic<Space::generic, uint64_t, T, F>;
    default: return nullptr;
  }
}

template <class F>
Handler by_bits(Type type, Space space, bool narrow) {
  switch (type) {
    case Type::b32:
    case Type::u32:
    case Type::s32: return in_space<uint32_t, F>(space, narrow);
    case Type::b64:
    case Type::u64:
    case Type::s64: return in_space<uint64_t, F>(space, narrow);
    default: return nullptr;
  }
}

template <class F>
Handler by_sign(Type type, Space space, bool narrow) {
  switch (type) {
    case Type::u32: return in_space<uint32_t, F>(space, narrow);
    case Type::s32: return in_space<int32_t, F>(space, narrow);
    case Type::u64: return in_space<uint64_t, F>(space, narrow);
    case Type::s64: return in_space<int64_t, F>(space, narrow);
    default: return nullptr;
  }
}

template <class F>
Handler with_b16(Type type, Space space, bool narrow) {
  return type == Type::b16 ? in_space<uint16_t, F>(space, narrow) : by_bits<F>(type, space, narrow);
}

template <class F>
Handler u32_only(Type type, Space space, bool narrow) {
  return type == Type::u32 ? in_space<uint32_t, F>(space, narrow) : nullptr;
}

Handler add_handler(Type type, Space space, bool narrow) {
  switch (type) {
    case Type::f32:
      return space == Space::shared ? in_space<uint32_t, Plain<AddFloat>>(space, narrow)
                                    : in_space<uint32_t, Plain<AddFloatFlushed>>(space, narrow);
    case Type::f64: return in_space<uint64_t, Plain<AddDouble>>(space, narrow);
    case Type::f16: return in_space<uint16_t, Plain<AddSmall<HalfFormat>>>(space, narrow);
    case Type::bf16: return in_space<uint16_t, Plain<AddSmall<BrainFormat>>>(space, narrow);
    case Type::f16x2: return in_space<uint32_t, Plain<AddPair<HalfFormat>>>(space, narrow);
    case Type::bf16x2: return in_space<uint32_t, Plain<AddPair<BrainFormat>>>(space, narrow);
    default: return by_bits<AddWrap>(type, space, narrow);
  }
}

struct OperationRow {
  Modifier modifier;
  Handler (*choose)(Type, Space, bool);
  uint8_t operands;
};

constexpr OperationRow kOperations[] = {
    {Modifier::exch, with_b16<Exchange>, 1}, {Modifier::cas, with_b16<CompareSwap>, 2},
    {Modifier::add, add_handler, 1},         {Modifier::and_, by_bits<And>, 1},
    {Modifier::or_, by_bits<Or>, 1},         {Modifier::xor_, by_bits<Xor>, 1},
    {Modifier::inc, u32_only<Increment>, 1}, {Modifier::dec, u32_only<Decrement>, 1},
    {Modifier::min, by_sign<Minimum>, 1},    {Modifier::max, by_sign<Maximum>, 1},
};

bool lower_atomic(Lowering& l, const Instruction& i) {
  bool returns = i.opcode == "atom";
  size_t at = returns ? 1 : 0;
  for (const OperationRow& row : kOperations) {
    if (!i.has(row.modifier)) continue;
    if (i.types.size() != 1 || i.operands.size() != at + 1 + row.operands) return false;
    Space space = space_of(i);
    LoweredAddress address;
    if (!lower_address(l, i.operands[at], space, address)) return false;
    Ref sources[3] = {address.base};
    for (size_t k = 0; k < row.operands; ++k) sources[1 + k] = l.source(i.operands[at + 1 + k], i.type());
    bool unused = returns && i.operands[0].kind == Operand::Kind::sink;
    Ref d = returns && !unused ? l.destination(i.operands[0], i.type()) : Ref();
    Op& op = l.emit(row.choose(i.type(), space, address.narrow), std::span<const Ref>(&d, returns && !unused ? 1 : 0),
                    std::span<const Ref>(sources, 1u + row.operands));
    op.immediate = address.offset;
    op.count = row.operands;
    return true;
  }
  return false;
}

constexpr ModifierSet kModifiers(Modifier::global, Modifier::shared, Modifier::shared_cluster, Modifier::cluster,
                                 Modifier::relaxed, Modifier::acquire, Modifier::release, Modifier::acq_rel,
                                 Modifier::cta, Modifier::gpu, Modifier::sys, Modifier::exch, Modifier::cas,
                                 Modifier::add, Modifier::and_, Modifier::or_, Modifier::xor_, Modifier::inc,
                                 Modifier::dec, Modifier::min, Modifier::max);
constexpr ModifierSet kHints(Modifier::level1_hint, Modifier::level2_hint);

// .noftz is the only behaviour of the small formats, and must be written.
const OpcodeEntry kOpcodes[] = {
    {"atom", kModifiers | kHints | ModifierSet(Modifier::noftz), lower_atomic},
    {"red", kModifiers | kHints | ModifierSet(Modifier::noftz), lower_atomic},
};

}  // namespace

std::span<const OpcodeEntry> atomic_opcodes() { return kOpcodes; }

}  // namespace gpuwire::software_device
