// mbarrier objects, bulk copies that signal them, and the addresses of other blocks of a cluster: PTX ISA 9.0, sections
// 9.7.13.15, 9.7.9.25 and 9.7.9.23.
//
// An mbarrier is 64 bits of shared memory: the expected count of a phase, the pending arrivals, the pending bytes, and
// the parity of the phase.
#include <cstring>

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

constexpr unsigned kCountBits = 20;
constexpr unsigned kBytesBits = 21;
constexpr uint64_t kCountMax = (1u << kCountBits) - 1;

struct Mbarrier {
  uint64_t expected = 0, pending = 0;
  int64_t bytes = 0;
  bool phase = false;

  static Mbarrier of(uint64_t word) {
    Mbarrier m;
    m.expected = word & kCountMax;
    m.pending = word >> kCountBits & kCountMax;
    m.bytes = static_cast<int64_t>(word << (64 - 2 * kCountBits - kBytesBits)) >> (64 - kBytesBits);
    m.phase = (word >> (2 * kCountBits + kBytesBits) & 1) != 0;
    return m;
  }
  uint64_t word() const {
    return expected | pending << kCountBits |
           (static_cast<uint64_t>(bytes) & ((1u << kBytesBits) - 1)) << (2 * kCountBits) |
           uint64_t{phase} << (2 * kCountBits + kBytesBits);
  }
  void end_phase_if_due() {
    if (pending != 0 || bytes != 0) return;
    phase = !phase;
    pending = expected;
  }
};

uint64_t* place_of(Warp& w, const Op& op, unsigned lane, uint64_t address) {
  return reinterpret_cast<uint64_t*>(resolve_lane(w, op, lane, Space::generic, address, 8, AccessKind::atomic));
}

// Changes the object at a lane's address. `change` returns the reason why it cannot, or null. Returns the word before
// the change; `fine` is false after a fault.
template <class Change>
uint64_t update(Warp& w, const Op& op, unsigned lane, uint64_t address, bool& fine, Change&& change) {
  uint64_t* place = place_of(w, op, lane, address);
  fine = place != nullptr;
  if (!fine) return 0;
  uint64_t before = __atomic_load_n(place, __ATOMIC_SEQ_CST);
  for (;;) {
    Mbarrier m = Mbarrier::of(before);
    if (const char* wrong = change(m); wrong != nullptr) {
      w.fault(Fault::trap, lane, op, wrong);
      fine = false;
      return 0;
    }
    m.end_phase_if_due();
    if (__atomic_compare_exchange_n(place, &before, m.word(), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return before;
  }
}

// refs: address, count
void init(Warp& w, const Op& op, uint32_t mask) {
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    uint64_t* place = place_of(w, op, lane, w.in<uint64_t>(op.ref[0])[lane]);
    if (place == nullptr) return;
    const uint64_t count = w.in<uint32_t>(op.ref[1])[lane];
    if (count == 0 || count > kCountMax)
      return w.fault(Fault::trap, lane, op, "mbarrier.init with a count that is not possible");
    __atomic_store_n(place, Mbarrier{count, count, 0, false}.word(), __ATOMIC_SEQ_CST);
  }
}

// refs: address. The memory may have other uses from now on.
void invalidate(Warp& w, const Op& op, uint32_t mask) {
  each_lane(mask, [&](unsigned lane) {
    if (w.stop_ == Warp::Stop::fault) return;
    if (uint64_t* place = place_of(w, op, lane, w.in<uint64_t>(op.ref[0])[lane]); place != nullptr)
      __atomic_store_n(place, 0, __ATOMIC_SEQ_CST);
  });
}

// refs: address, bytes; detail: the bytes have arrived
void change_bytes(Warp& w, const Op& op, uint32_t mask) {
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    const int64_t bytes = w.in<uint32_t>(op.ref[1])[lane];
    bool fine = true;
    update(w, op, lane, w.in<uint64_t>(op.ref[0])[lane], fine, [&](Mbarrier& m) -> const char* {
      m.bytes += op.detail != 0 ? -bytes : bytes;
      return nullptr;
    });
    if (!fine) return;
  }
}

enum ArriveDetail : uint16_t { kArrive, kDrop, kExpectBytes };

// refs: state, address, count or bytes
void arrive(Warp& w, const Op& op, uint32_t mask) {
  uint64_t* state = w.out<uint64_t>(op.ref[0]);
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    const uint64_t given = w.in<uint32_t>(op.ref[2])[lane];
    bool fine = true;
    const uint64_t before = update(w, op, lane, w.in<uint64_t>(op.ref[1])[lane], fine, [&](Mbarrier& m) -> const char* {
      const uint64_t count = op.detail == kExpectBytes ? 1 : given;
      if (op.detail == kExpectBytes) m.bytes += static_cast<int64_t>(given);
      if (count > m.pending) return "more threads arrive at an mbarrier than it expects";
      m.pending -= count;
      if (op.detail == kDrop) m.expected -= count;
      return nullptr;
    });
    if (!fine) return;
    state[lane] = before;
  }
}

// refs: p, address, state or parity; detail: parity; count 2: after a failed wait, other fragments get a turn
void test_wait(Warp& w, const Op& op, uint32_t mask) {
  uint32_t complete = 0;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    uint64_t* place = place_of(w, op, lane, w.in<uint64_t>(op.ref[1])[lane]);
    if (place == nullptr) return;
    const bool waited_for = op.detail != 0 ? (w.in<uint32_t>(op.ref[2])[lane] & 1) != 0
                                           : Mbarrier::of(w.in<uint64_t>(op.ref[2])[lane]).phase;
    complete |= static_cast<uint32_t>(Mbarrier::of(__atomic_load_n(place, __ATOMIC_SEQ_CST)).phase != waited_for)
                << lane;
  }
  w.set_predicate(op.ref[0], mask, complete);
  if (op.count == 2 && complete != mask && w.stop_ == Warp::Stop::none) w.stop_ = Warp::Stop::yield;
}

// refs: count, state
void pending_count(Warp& w, const Op& op, uint32_t mask) {
  map1<uint32_t, uint64_t>(w, op, mask,
                           [](uint64_t state) { return static_cast<uint32_t>(Mbarrier::of(state).pending); });
}

// Lowers a generic address to 8 bytes, including its constant part.
bool generic_address(Lowering& l, const Operand& operand, Space space, Ref& result) {
  LoweredAddress address;
  if (!lower_address(l, operand, space, address)) return false;
  Ref wide = address.base;
  if (address.narrow) {
    wide = l.temporary(8);
    l.emit(resize_handler(4, 8, false), {wide}, {address.base});
  }
  result = l.temporary(8);
  l.emit(add_window_handler(), {result}, {wide}).immediate =
      (space == Space::shared ? kSharedWindow : 0) + address.offset;
  return true;
}

Space mbarrier_space(const Instruction& i) { return i.has(Modifier::shared) ? Space::shared : Space::generic; }

bool lower_arrive(Lowering& l, const Instruction& i) {
  const bool expects = i.has(Modifier::expect_tx);
  if (i.operands.size() < 2 || i.operands.size() > 3 || (expects && i.operands.size() != 3)) return false;
  Ref address;
  if (!generic_address(l, i.operands[1], mbarrier_space(i), address)) return false;
  Ref count = i.operands.size() == 3 ? l.source(i.operands[2], Type::b32) : l.constant(1, 4);
  l.emit(&arrive, {l.destination(i.operands[0], Type::b64)}, {address, count}).detail = i.has(Modifier::arrive_drop)
                                                                                            ? kDrop
                                                                                        : expects ? kExpectBytes
                                                                                                  : kArrive;
  return true;
}

bool lower_wait(Lowering& l, const Instruction& i) {
  const bool may_suspend = i.has(Modifier::try_wait), parity = i.has(Modifier::parity);
  if (i.operands.size() != 3 && !(may_suspend && i.operands.size() == 4)) return false;
  Ref address;
  if (!generic_address(l, i.operands[1], mbarrier_space(i), address)) return false;
  Ref state = l.source(i.operands[2], parity ? Type::b32 : Type::b64);
  Op& op = l.emit(&test_wait, {l.predicate_destination(i.operands[0])}, {address, state});
  op.detail = parity;
  op.count = may_suspend ? 2 : 1;
  return true;
}

bool lower_mbarrier(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.type() != Type::b64) return false;
  if (i.has(Modifier::arrive) || i.has(Modifier::arrive_drop)) return lower_arrive(l, i);
  if (i.has(Modifier::test_wait) || i.has(Modifier::try_wait)) return lower_wait(l, i);
  if (i.has(Modifier::pending_count)) {
    if (i.operands.size() != 2) return false;
    Ref state = l.source(i.operands[1], Type::b64);
    l.emit(&pending_count, {l.destination(i.operands[0], Type::b32)}, {state});
    return true;
  }
  const bool invalidates = i.has(Modifier::inval);
  if (i.operands.size() != (invalidates ? 1u : 2u)) return false;
  Ref address;
  if (!generic_address(l, i.operands[0], mbarrier_space(i), address)) return false;
  if (invalidates) {
    l.emit(&invalidate, {}, {address});
    return true;
  }
  Ref count = l.source(i.operands[1], Type::b32);
  if (i.has(Modifier::init)) {
    l.emit(&init, {}, {address, count});
  } else if (i.has(Modifier::expect_tx) || i.has(Modifier::complete_tx)) {
    l.emit(&change_bytes, {}, {address, count}).detail = i.has(Modifier::complete_tx);
  } else {
    return false;
  }
  return true;
}

// refs: target, source, bytes, [mbarrier]; count: number of refs. The copy is executed at once.
void copy_bulk(Warp& w, const Op& op, uint32_t mask) {
  constexpr uint32_t kUnit = 16;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    const uint64_t to = w.in<uint64_t>(op.ref[0])[lane], from = w.in<uint64_t>(op.ref[1])[lane];
    const uint32_t bytes = w.in<uint32_t>(op.ref[2])[lane];
    if (bytes % kUnit != 0)
      return w.fault(Fault::illegal_instruction, lane, op, "a bulk copy of a size that is no multiple of 16");
    for (uint32_t at = 0; at < bytes; at += kUnit) {
      const uint8_t* source = resolve_lane(w, op, lane, Space::generic, from + at, kUnit, AccessKind::load);
      if (source == nullptr) return;
      uint8_t* target = resolve_lane(w, op, lane, Space::generic, to + at, kUnit, AccessKind::store);
      if (target == nullptr) return;
      std::memcpy(target, source, kUnit);
    }
    if (op.count < 4) continue;
    bool fine = true;
    update(w, op, lane, w.in<uint64_t>(op.ref[3])[lane], fine, [&](Mbarrier& m) -> const char* {
      m.bytes -= bytes;
      return nullptr;
    });
    if (!fine) return;
  }
}

// refs: d, a, rank. The window of a generic address stays the same.
template <class T>
void map_address(Warp& w, const Op& op, uint32_t mask) {
  map2<T, T, uint32_t>(w, op, mask, [](T a, uint32_t rank) {
    return static_cast<T>((a & ~static_cast<T>(kClusterRankMask)) |
                          static_cast<T>(((rank + 1) & 0xff) << kClusterRankShift));
  });
}

template <class T>
void rank_of_address(Warp& w, const Op& op, uint32_t mask) {
  const uint32_t own = w.block_->rank();
  map1<uint32_t, T>(w, op, mask, [own](T a) {
    const auto number = static_cast<uint32_t>(a >> kClusterRankShift & 0xff);
    return number == 0 ? own : number - 1;
  });
}

bool lower_mapa(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.operands.size() != 3 || ptx::size_of(i.type()) < 4) return false;
  Ref a = l.source(i.operands[1], i.type()), rank = l.source(i.operands[2], Type::b32);
  l.emit(ptx::size_of(i.type()) == 4 ? &map_address<uint32_t> : &map_address<uint64_t>,
         {l.destination(i.operands[0], i.type())}, {a, rank});
  return true;
}

bool lower_getctarank(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.operands.size() != 2 || ptx::size_of(i.type()) < 4) return false;
  Ref a = l.source(i.operands[1], i.type());
  l.emit(ptx::size_of(i.type()) == 4 ? &rank_of_address<uint32_t> : &rank_of_address<uint64_t>,
         {l.destination(i.operands[0], Type::b32)}, {a});
  return true;
}

constexpr ModifierSet kOrder(Modifier::shared, Modifier::shared_cluster, Modifier::relaxed, Modifier::acquire,
                             Modifier::release, Modifier::cta, Modifier::cluster);

const OpcodeEntry kOpcodes[] = {
    {"mbarrier",
     kOrder | ModifierSet(Modifier::init, Modifier::inval, Modifier::expect_tx, Modifier::complete_tx, Modifier::arrive,
                          Modifier::arrive_drop, Modifier::no_complete, Modifier::test_wait, Modifier::try_wait,
                          Modifier::parity, Modifier::pending_count),
     lower_mbarrier},
    {"mapa", ModifierSet(Modifier::shared, Modifier::shared_cluster), lower_mapa},
    {"getctarank", ModifierSet(Modifier::shared, Modifier::shared_cluster), lower_getctarank},
};

}  // namespace

std::span<const OpcodeEntry> mbarrier_opcodes() { return kOpcodes; }

bool lower_bulk_copy(Lowering& l, const Instruction& i) {
  // The first space in the instruction is the target's.
  Space spaces[2] = {Space::generic, Space::generic};
  size_t found = 0;
  for (Modifier m : i.order) {
    if (m != Modifier::global && m != Modifier::shared && m != Modifier::shared_cluster) continue;
    if (found < 2) spaces[found++] = m == Modifier::global ? Space::global : Space::shared;
  }
  const bool reports = i.has(Modifier::mbarrier_bytes);
  if (found != 2 || reports == i.has(Modifier::bulk_group) || i.operands.size() != (reports ? 4u : 3u)) return false;
  Ref refs[4];
  if (!generic_address(l, i.operands[0], spaces[0], refs[0]) || !generic_address(l, i.operands[1], spaces[1], refs[1]))
    return false;
  refs[2] = l.source(i.operands[2], Type::b32);
  if (reports && !generic_address(l, i.operands[3], Space::shared, refs[3])) return false;
  l.emit(&copy_bulk, {}, std::span<const Ref>(refs, reports ? 4 : 3)).count = reports ? 4 : 3;
  return true;
}

// cp.async.mbarrier.arrive: the earlier copies are done, so the instruction is an arrival. Without .noinc, the arrival
// also increments the pending count, so that it changes nothing.
bool lower_arrive_of_copies(Lowering& l, const Instruction& i) {
  if (i.operands.size() != 1) return false;
  if (!i.has(Modifier::noinc)) return true;
  Ref address;
  if (!generic_address(l, i.operands[0], mbarrier_space(i), address)) return false;
  l.emit(&arrive, {l.temporary(8)}, {address, l.constant(1, 4)}).detail = kArrive;
  return true;
}

}  // namespace gpuwire::software_device
