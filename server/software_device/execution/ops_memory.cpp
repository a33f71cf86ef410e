// Loads, stores, prefetches, asynchronous copies: PTX ISA 9.0, section 9.7.9.
#include <cstring>
#include <type_traits>

#include "server/software_device/execution/handlers.hpp"
#include "server/software_device/execution/memory_access.hpp"

namespace gpuwire::software_device {
namespace {

using ptx::Instruction;
using ptx::Modifier;
using ptx::ModifierSet;
using ptx::Operand;
using ptx::Space;
using ptx::Type;

// Returns whether the active lanes' pointers are contiguous, so that one copy is enough.
inline bool consecutive(uint8_t* const (&pointer)[kLanes], size_t bytes) {
  uintptr_t first = reinterpret_cast<uintptr_t>(pointer[0]), difference = 0;
  for (unsigned i = 0; i < kLanes; ++i) difference |= reinterpret_cast<uintptr_t>(pointer[i]) ^ (first + i * bytes);
  return difference == 0;
}

// M: the type in memory; R: the register's type, at least as wide. refs: results, address.
template <class M, class R>
inline void gather(Warp& w, const Op& op, uint32_t mask, uint8_t* const (&pointer)[kLanes]) {
  bool all = mask == kAllLanes && op.count == 1 && consecutive(pointer, sizeof(M));
  for (unsigned k = 0; k < op.count; ++k) {
    R* d = w.out<R>(op.ref[k]);
    if (all) {
      const uint8_t* from = pointer[0];
#pragma GCC ivdep
      for (unsigned i = 0; i < kLanes; ++i) {
        M value;
        std::memcpy(&value, from + i * sizeof(M), sizeof(M));
        d[i] = static_cast<R>(value);
      }
    } else {
      each_lane(mask, [&](unsigned i) {
        M value;
        std::memcpy(&value, pointer[i] + k * sizeof(M), sizeof(M));
        d[i] = static_cast<R>(value);
      });
    }
  }
}

template <class M, class R>
inline void scatter(Warp& w, const Op& op, uint32_t mask, uint8_t* const (&pointer)[kLanes]) {
  for (unsigned k = 0; k < op.count; ++k) {
    const R* s = w.in<R>(op.ref[1 + k]);
    each_lane(mask, [&](unsigned i) {
      M value = static_cast<M>(s[i]);
      std::memcpy(pointer[i] + k * sizeof(M), &value, sizeof(M));
    });
  }
}

// Other threads may access the same place atomically, so the value is accessed as a whole, with at least acquire or
// release.
template <class M, class R>
inline void gather_ordered(Warp& w, const Op& op, uint32_t mask, uint8_t* const (&pointer)[kLanes]) {
  for (unsigned k = 0; k < op.count; ++k) {
    R* d = w.out<R>(op.ref[k]);
    each_lane(mask, [&](unsigned i) {
      d[i] = static_cast<R>(__atomic_load_n(reinterpret_cast<M*>(pointer[i]) + k, __ATOMIC_ACQUIRE));
    });
  }
}

template <class M, class R>
inline void scatter_ordered(Warp& w, const Op& op, uint32_t mask, uint8_t* const (&pointer)[kLanes]) {
  for (unsigned k = 0; k < op.count; ++k) {
    const R* s = w.in<R>(op.ref[1 + k]);
    each_lane(mask, [&](unsigned i) {
      __atomic_store_n(reinterpret_cast<M*>(pointer[i]) + k, static_cast<M>(s[i]), __ATOMIC_RELEASE);
    });
  }
}

template <Space S, class A, bool Ordered>
struct Load {
  template <class M, class R>
  static void run(Warp& w, const Op& op, uint32_t mask) {
    uint8_t* pointer[kLanes];
    if (!resolve<S, A>(w, op, mask, w.in<A>(op.ref[op.count]), sizeof(M) * op.count, AccessKind::load, pointer)) return;
    if constexpr (Ordered) gather_ordered<M, R>(w, op, mask, pointer);
    else gather<M, R>(w, op, mask, pointer);
  }
};

template <Space S, class A, bool Ordered>
struct Store {
  template <class M, class R>
  static void run(Warp& w, const Op& op, uint32_t mask) {
    uint8_t* pointer[kLanes];
    if (!resolve<S, A>(w, op, mask, w.in<A>(op.ref[0]), sizeof(M) * op.count, AccessKind::store, pointer)) return;
    if constexpr (Ordered) scatter_ordered<M, R>(w, op, mask, pointer);
    else scatter<M, R>(w, op, mask, pointer);
  }
};

// A kernel's parameters are the same for every lane.
struct LoadEntryParameter {
  template <class M, class R>
  static void run(Warp& w, const Op& op, uint32_t mask) {
    const uint8_t* from = w.launch_->parameters().data() + op.immediate;
    for (unsigned k = 0; k < op.count; ++k) {
      M value;
      std::memcpy(&value, from + k * sizeof(M), sizeof(M));
      R* d = w.out<R>(op.ref[k]);
      if (w.whole(mask)) {
        for (unsigned i = 0; i < kLanes; ++i) d[i] = static_cast<R>(value);
      } else {
        each_lane(mask, [&](unsigned i) { d[i] = static_cast<R>(value); });
      }
    }
  }
};

// .param arrays are in the frame, one lane after the other; detail: bytes of a lane. refs: results, area | area,
// values.
struct LoadFrame {
  template <class M, class R>
  static void run(Warp& w, const Op& op, uint32_t mask) {
    const uint8_t* area = w.in<uint8_t>(op.ref[op.count]) + op.immediate;
    for (unsigned k = 0; k < op.count; ++k) {
      R* d = w.out<R>(op.ref[k]);
      each_lane(mask, [&](unsigned i) {
        M value;
        std::memcpy(&value, area + size_t{i} * op.detail + k * sizeof(M), sizeof(M));
        d[i] = static_cast<R>(value);
      });
    }
  }
};

struct StoreFrame {
  template <class M, class R>
  static void run(Warp& w, const Op& op, uint32_t mask) {
    uint8_t* area = w.out<uint8_t>(op.ref[0]) + op.immediate;
    for (unsigned k = 0; k < op.count; ++k) {
      const R* s = w.in<R>(op.ref[1 + k]);
      each_lane(mask, [&](unsigned i) {
        M value = static_cast<M>(s[i]);
        std::memcpy(area + size_t{i} * op.detail + k * sizeof(M), &value, sizeof(M));
      });
    }
  }
};

template <class H, class M>
Handler by_register(uint32_t bytes) {
  if constexpr (sizeof(M) <= 1) {
    if (bytes == 1) return &H::template run<M, uint8_t>;
  }
  if constexpr (sizeof(M) <= 2) {
    if (bytes == 2) return &H::template run<M, uint16_t>;
  }
  if constexpr (sizeof(M) <= 4) {
    if (bytes == 4) return &H::template run<M, uint32_t>;
  }
  return bytes == 8 ? &H::template run<M, uint64_t> : nullptr;
}

// Loads extend by the type's sign; stores truncate, so they need no sign.
template <class H>
Handler load_by_type(Type type, uint32_t register_bytes) {
  bool sign = ptx::is_signed(type);
  switch (ptx::size_of(type)) {
    case 1: return sign ? by_register<H, int8_t>(register_bytes) : by_register<H, uint8_t>(register_bytes);
    case 2: return sign ? by_register<H, int16_t>(register_bytes) : by_register<H, uint16_t>(register_bytes);
    case 4: return sign ? by_register<H, int32_t>(register_bytes) : by_register<H, uint32_t>(register_bytes);
    case 8: return by_register<H, uint64_t>(register_bytes);
    default: return nullptr;
  }
}

template <class H>
Handler store_by_type(Type type, uint32_t register_bytes) {
  switch (ptx::size_of(type)) {
    case 1: return by_register<H, uint8_t>(register_bytes);
    case 2: return by_register<H, uint16_t>(register_bytes);
    case 4: return by_register<H, uint32_t>(register_bytes);
    case 8: return by_register<H, uint64_t>(register_bytes);
    default: return nullptr;
  }
}

template <template <Space, class, bool> class H, bool Ordered, class Chooser>
Handler by_space(Space space, bool narrow, Chooser choose) {
  switch (space) {
    case Space::shared:
      return narrow ? choose(H<Space::shared, uint32_t, Ordered>{}) : choose(H<Space::shared, uint64_t, Ordered>{});
    case Space::local:
      return narrow ? choose(H<Space::local, uint32_t, false>{}) : choose(H<Space::local, uint64_t, false>{});
    case Space::generic: return choose(H<Space::generic, uint64_t, Ordered>{});
    default: return choose(H<Space::global, uint64_t, Ordered>{});  // constants are in device memory, too
  }
}

bool is_ordered(const Instruction& i) {
  return i.has(Modifier::volatile_) || i.has(Modifier::relaxed) || i.has(Modifier::acquire) ||
         i.has(Modifier::release) || i.has(Modifier::mmio);
}

// Returns a vector's elements, or the single operand.
std::span<const Operand> elements_of(const Operand& operand) {
  if (operand.kind == Operand::Kind::vector) return operand.elements;
  return {&operand, 1};
}

bool vector_fits(Lowering& l, const Instruction& i, size_t count) {
  size_t expected = i.has(Modifier::v2) ? 2 : i.has(Modifier::v4) ? 4 : 1;
  if (count != expected) return l.invalid("the vector has the wrong number of elements");
  if (count * ptx::size_of(i.type()) > 16) return false;
  return true;
}

bool lower_load(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.operands.size() != 2 || i.type() == Type::pred) return false;
  std::span<const Operand> elements = elements_of(i.operands[0]);
  if (!vector_fits(l, i, elements.size())) return false;
  Ref results[4];
  uint32_t bytes = 0;
  bool mixed = false;
  for (size_t k = 0; k < elements.size(); ++k) {
    uint32_t register_bytes = 0;
    if (elements[k].kind == Operand::Kind::sink) continue;
    results[k] = l.wide_destination(elements[k], i.type(), register_bytes);
    mixed |= bytes != 0 && bytes != register_bytes;
    bytes = register_bytes;
  }
  if (mixed) return l.invalid("the elements of a vector have different widths");
  if (bytes == 0) bytes = ptx::size_of(i.type());
  for (size_t k = 0; k < elements.size(); ++k) {
    if (elements[k].kind == Operand::Kind::sink) results[k] = l.temporary(bytes);
  }
  Space space = space_of(i);
  const Operand& where = i.operands[1];
  std::span<const Ref> d(results, elements.size());
  uint8_t count = static_cast<uint8_t>(elements.size());
  uint32_t access = count * ptx::size_of(i.type());
  bool ordered = is_ordered(i);
  if (space == Space::param) {
    Lowering::Address address;
    if (!l.address(where, address)) return false;
    if (!address.parameter) {
      // The register contains the address of a kernel parameter.
      if (!l.source_function().entry || address.base_bytes != 8) return false;
      Ref generic = l.temporary(8);
      l.emit(add_window_handler(), {generic}, {address.base}).immediate = kParameterWindow;
      Op& op = l.emit(load_by_type<Load<Space::generic, uint64_t, false>>(i.type(), bytes), d,
                      std::span<const Ref>(&generic, 1));
      op.immediate = static_cast<uint64_t>(address.offset);
      op.count = count;
      return true;
    }
    const Lowering::ParameterPlace& place = l.parameter(address.variable);
    if (address.offset < 0 || static_cast<uint64_t>(address.offset) + access > place.bytes)
      return l.invalid("access outside of the parameter");
    if (place.entry) {
      Op& op = l.emit(load_by_type<LoadEntryParameter>(i.type(), bytes), d, {});
      op.immediate = place.offset + static_cast<uint64_t>(address.offset);
      op.count = count;
    } else if (place.scalar) {
      l.emit(resize_handler(place.bytes, bytes, ptx::is_signed(i.type())), d, std::span<const Ref>(&place.ref, 1));
    } else {
      Op& op = l.emit(load_by_type<LoadFrame>(i.type(), bytes), d, std::span<const Ref>(&place.ref, 1));
      op.immediate = static_cast<uint64_t>(address.offset);
      op.count = count;
      op.detail = static_cast<uint16_t>(place.bytes);
    }
    return true;
  }
  LoweredAddress address;
  if (!lower_address(l, where, space, address)) return false;
  auto choose = [&](auto h) { return load_by_type<decltype(h)>(i.type(), bytes); };
  Handler handler = ordered ? by_space<Load, true>(space, address.narrow, choose)
                            : by_space<Load, false>(space, address.narrow, choose);
  Op& op = l.emit(handler, d, std::span<const Ref>(&address.base, 1));
  op.immediate = address.offset;
  op.count = count;
  if (count > 1) l.keep_apart();
  return true;
}

bool lower_store(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.operands.size() != 2 || i.type() == Type::pred) return false;
  std::span<const Operand> elements = elements_of(i.operands[1]);
  if (!vector_fits(l, i, elements.size())) return false;
  Space space = space_of(i);
  if (space == Space::constant) return l.invalid("constant memory cannot be written");
  uint8_t count = static_cast<uint8_t>(elements.size());
  uint32_t access = count * ptx::size_of(i.type());
  // Immediates have the width of the registers beside them.
  uint32_t bytes = 0;
  for (const Operand& element : elements) {
    uint32_t own = l.register_bytes(element);
    if (own != 0 && bytes != 0 && own != bytes) return l.invalid("the elements of a vector have different widths");
    if (own != 0) bytes = own;
  }
  if (bytes == 0) bytes = ptx::size_of(i.type());
  Ref sources[5];
  for (size_t k = 0; k < elements.size(); ++k) {
    uint32_t own = 0;
    if (elements[k].kind == Operand::Kind::reg) {
      sources[1 + k] = l.wide_source(elements[k], i.type(), own);
    } else if (elements[k].kind == Operand::Kind::integer && !ptx::is_float(i.type())) {
      sources[1 + k] = l.constant(elements[k].value, bytes);
    } else {
      sources[1 + k] = l.wide_source(elements[k], i.type(), own);
      if (own != bytes) return false;
    }
  }
  if (space == Space::param) {
    Lowering::Address address;
    if (!l.address(i.operands[0], address)) return false;
    if (!address.parameter) return false;
    const Lowering::ParameterPlace& place = l.parameter(address.variable);
    if (place.entry) return l.invalid("a kernel's parameters cannot be written");
    if (address.offset < 0 || static_cast<uint64_t>(address.offset) + access > place.bytes)
      return l.invalid("access outside of the parameter");
    if (place.scalar) {
      l.emit(resize_handler(bytes, place.bytes, false), {place.ref}, {sources[1]});
    } else {
      sources[0] = place.ref;
      Op& op =
          l.emit(store_by_type<StoreFrame>(i.type(), bytes), {}, std::span<const Ref>(sources, elements.size() + 1));
      op.immediate = static_cast<uint64_t>(address.offset);
      op.count = count;
      op.detail = static_cast<uint16_t>(place.bytes);
    }
    return true;
  }
  LoweredAddress address;
  if (!lower_address(l, i.operands[0], space, address)) return false;
  sources[0] = address.base;
  auto choose = [&](auto h) { return store_by_type<decltype(h)>(i.type(), bytes); };
  Handler handler = is_ordered(i) ? by_space<Store, true>(space, address.narrow, choose)
                                  : by_space<Store, false>(space, address.narrow, choose);
  Op& op = l.emit(handler, {}, std::span<const Ref>(sources, elements.size() + 1));
  op.immediate = address.offset;
  op.count = count;
  return true;
}

bool lower_nothing(Lowering&, const Instruction&) { return true; }

// cp.async: the copy is executed at once, so waiting for it does nothing. refs: shared address, global address, source
// size. count: log2 of the bytes.
template <class SharedAddress>
void copy_async(Warp& w, const Op& op, uint32_t mask) {
  uint32_t bytes = op.detail;
  uint8_t* to[kLanes];
  uint8_t* from[kLanes];
  Op shared_op = op, global_op = op;
  shared_op.immediate = op.immediate & 0xffffffff;
  global_op.immediate = static_cast<uint64_t>(static_cast<int64_t>(op.immediate) >> 32);
  if (!resolve<Space::shared, SharedAddress>(w, shared_op, mask, w.in<SharedAddress>(op.ref[0]), bytes,
                                             AccessKind::store, to))
    return;
  const uint64_t* address = w.in<uint64_t>(op.ref[1]);
  const uint32_t* size = w.in<uint32_t>(op.ref[2]);
  each_lane(mask, [&](unsigned i) {
    uint32_t given = std::min(size[i], bytes);
    if (given != 0 && w.stop_ != Warp::Stop::fault) {
      from[i] = resolve_lane(w, op, i, Space::global, address[i] + global_op.immediate, bytes, AccessKind::load);
      if (from[i] == nullptr) return;
      std::memcpy(to[i], from[i], given);
    }
    if (w.stop_ != Warp::Stop::fault) std::memset(to[i] + given, 0, bytes - given);
  });
}

bool lower_cp(Lowering& l, const Instruction& i) {
  if (!i.has(Modifier::async)) return false;
  if (i.has(Modifier::commit_group) || i.has(Modifier::wait_group) || i.has(Modifier::wait_all)) return true;
  if (i.has(Modifier::mbarrier)) return lower_arrive_of_copies(l, i);
  if (i.has(Modifier::bulk)) return lower_bulk_copy(l, i);
  if (i.has(Modifier::shared_cluster) || i.has(Modifier::mbarrier_bytes) || i.has(Modifier::bulk_group)) return false;
  if (!i.has(Modifier::shared) || !i.has(Modifier::global) || i.operands.size() < 3 || i.operands.size() > 4)
    return false;
  if (i.operands[2].kind != Operand::Kind::integer) return false;
  uint64_t bytes = i.operands[2].value;
  if (bytes != 4 && bytes != 8 && bytes != 16) return l.invalid("cp.async copies 4, 8 or 16 bytes");
  LoweredAddress to, from;
  if (!lower_address(l, i.operands[0], Space::shared, to) || !lower_address(l, i.operands[1], Space::global, from))
    return false;
  if (l.is_predicate(i.operands.back())) return false;
  Ref size = i.operands.size() == 4 ? l.source(i.operands[3], Type::b32) : l.constant(bytes, 4);
  int64_t from_offset = static_cast<int64_t>(from.offset);
  if (from_offset > INT32_MAX || from_offset < INT32_MIN || to.offset > INT32_MAX) return false;
  Op& op = l.emit(to.narrow ? &copy_async<uint32_t> : &copy_async<uint64_t>, {}, {to.base, from.base, size});
  op.immediate = static_cast<uint64_t>(from_offset) << 32 | to.offset;
  op.detail = static_cast<uint16_t>(bytes);
  return true;
}

constexpr ModifierSet kSpaces(Modifier::global, Modifier::shared, Modifier::shared_cluster, Modifier::local,
                              Modifier::const_, Modifier::param);
constexpr ModifierSet kOrder(Modifier::weak, Modifier::volatile_, Modifier::relaxed, Modifier::acquire,
                             Modifier::release, Modifier::mmio, Modifier::cta, Modifier::gpu, Modifier::sys,
                             Modifier::cluster);
constexpr ModifierSet kCache(Modifier::ca, Modifier::cg, Modifier::cs, Modifier::lu, Modifier::cv, Modifier::wb,
                             Modifier::wt, Modifier::nc, Modifier::level1_hint, Modifier::level2_hint);
constexpr ModifierSet kVectors(Modifier::v2, Modifier::v4);

const OpcodeEntry kOpcodes[] = {
    {"ld", kSpaces | kOrder | kCache | kVectors, lower_load},
    {"ldu", ModifierSet(Modifier::global) | kVectors, lower_load},
    {"st", kSpaces | kOrder | kCache | kVectors, lower_store},
    {"prefetch", kSpaces | kCache, lower_nothing},
    {"prefetchu", kCache, lower_nothing},
    {"applypriority", kSpaces | kCache, lower_nothing},
    {"discard", kSpaces | kCache, lower_nothing},
    {"cp",
     ModifierSet(Modifier::async, Modifier::shared, Modifier::global, Modifier::ca, Modifier::cg, Modifier::level2_hint,
                 Modifier::commit_group, Modifier::wait_group, Modifier::wait_all, Modifier::bulk, Modifier::mbarrier,
                 Modifier::arrive, Modifier::noinc, Modifier::shared_cluster, Modifier::mbarrier_bytes,
                 Modifier::bulk_group, Modifier::read),
     lower_cp},
};

}  // namespace

std::span<const OpcodeEntry> memory_opcodes() { return kOpcodes; }

}  // namespace gpuwire::software_device
