// Votes, shuffles, matches and reductions over the lanes of a warp: PTX ISA 9.0, sections 9.7.9.6 and 9.7.13.
#include <algorithm>

#include "server/software_device/execution/lanes.hpp"

namespace gpuwire::software_device {
namespace {

using ptx::Instruction;
using ptx::Modifier;
using ptx::ModifierSet;
using ptx::Operand;
using ptx::Type;

// Collects the lanes that execute this .sync instruction: adds lanes of the same frame that wait at it, and puts aside
// the lanes whose member mask is not complete. Returns the lanes that may continue. `members` is the register of member
// masks.
uint32_t gather_members(Warp& w, const Op& op, uint32_t mask, Ref members) {
  if (!w.fragments().empty()) {
    auto& waiting = w.fragments();
    for (size_t i = 0; i < waiting.size();) {
      if (waiting[i].pc == &op && waiting[i].frame == w.frame_ && waiting[i].state != Fragment::State::at_barrier &&
          waiting[i].state != Fragment::State::at_cluster) {
        // A ready fragment at this instruction arrives when it runs, because its own guard decides which lanes take
        // part.
        mask |= waiting[i].state == Fragment::State::at_exchange ? waiting[i].mask : 0;
        if (waiting[i].state == Fragment::State::at_exchange) {
          w.active_ |= waiting[i].mask;
          waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(i));
          continue;
        }
      }
      ++i;
    }
  }
  const uint32_t* member = w.in<uint32_t>(members);
  uint32_t incomplete = 0;
  each_lane(mask, [&](unsigned i) { incomplete |= static_cast<uint32_t>((member[i] & w.live_ & ~mask) != 0) << i; });
  if (incomplete != 0) w.wait_for_exchange(incomplete, op);
  return mask & ~incomplete;
}

// Calls f(group) for each set of lanes of `mask` with the same value of `key`.
template <class T, class F>
void each_group(uint32_t mask, const T* key, F&& f) {
  while (mask != 0) {
    T first = key[std::countr_zero(mask)];
    uint32_t group = 0;
    each_lane(mask, [&](unsigned i) { group |= static_cast<uint32_t>(key[i] == first) << i; });
    f(group, first);
    mask &= ~group;
  }
}

enum VoteDetail : uint16_t { kAll, kAny, kUni, kBallot };

void write_vote(Warp& w, const Op& op, uint32_t lanes, uint32_t votes) {
  if (op.detail == kBallot) {
    uint32_t* d = w.out<uint32_t>(op.ref[0]);
    return each_lane(lanes, [&](unsigned i) { d[i] = votes; });
  }
  bool result = op.detail == kAll ? votes == lanes : op.detail == kAny ? votes != 0 : votes == lanes || votes == 0;
  w.set_predicate(op.ref[0], lanes, result ? kAllLanes : 0);
}

// refs: d, p, members
void vote_sync(Warp& w, const Op& op, uint32_t mask) {
  uint32_t lanes = gather_members(w, op, mask, op.ref[2]);
  uint32_t p = w.predicate(op.ref[1]);
  each_group(lanes, w.in<uint32_t>(op.ref[2]), [&](uint32_t group, uint32_t) { write_vote(w, op, group, p & group); });
}

void vote_active(Warp& w, const Op& op, uint32_t mask) { write_vote(w, op, mask, w.predicate(op.ref[1]) & mask); }

bool lower_vote(Lowering& l, const Instruction& i) {
  bool sync = i.has(Modifier::sync);
  if (i.types.size() != 1 || i.operands.size() != (sync ? 3u : 2u)) return false;
  uint16_t detail = i.has(Modifier::all) ? kAll : i.has(Modifier::any) ? kAny : i.has(Modifier::uni) ? kUni : kBallot;
  if (detail == kBallot ? !i.has(Modifier::ballot) || i.type() != Type::b32 : i.type() != Type::pred) return false;
  Ref p = l.predicate_source(i.operands[1]);
  Ref members = sync ? l.source(i.operands[2], Type::b32) : Ref();
  Ref d = detail == kBallot ? l.destination(i.operands[0], Type::b32) : l.predicate_destination(i.operands[0]);
  if (sync) {
    l.emit(&vote_sync, {d}, {p, members}).detail = detail;
  } else {
    l.emit(&vote_active, {d}, {p}).detail = detail;
  }
  l.keep_apart();
  return true;
}

enum ShuffleDetail : uint16_t { kUp, kDown, kButterfly, kIndex };

// refs: d, p, a, b, c, members. PTX leaves the value from a non-participating source lane undefined. GPUs return zero,
// and programs add it up.
void shuffle_lanes(Warp& w, const Op& op, uint32_t lanes) {
  const uint32_t* a = w.in<uint32_t>(op.ref[2]);
  const uint32_t* b = w.in<uint32_t>(op.ref[3]);
  const uint32_t* c = w.in<uint32_t>(op.ref[4]);
  uint32_t result[kLanes];
  uint32_t inside = 0;
  each_lane(lanes, [&](unsigned i) {
    uint32_t offset = b[i] & 31, clamp = c[i] & 31, segment = c[i] >> 8 & 31;
    uint32_t highest = (i & segment) | (clamp & ~segment), lowest = i & segment;
    uint32_t from = 0;
    bool valid = false;
    switch (op.detail) {
      case kUp:
        from = i - offset;
        valid = static_cast<int32_t>(from) >= static_cast<int32_t>(highest);
        break;
      case kDown:
        from = i + offset;
        valid = from <= highest;
        break;
      case kButterfly:
        from = i ^ offset;
        valid = from <= highest;
        break;
      default:
        from = lowest | (offset & ~segment);
        valid = from <= highest;
        break;
    }
    if (!valid) from = i;
    result[i] = lanes >> from & 1 ? a[from] : 0;
    inside |= static_cast<uint32_t>(valid) << i;
  });
  uint32_t* d = w.out<uint32_t>(op.ref[0]);
  each_lane(lanes, [&](unsigned i) { d[i] = result[i]; });
  if (op.count == 2) w.set_predicate(op.ref[1], lanes, inside);
}

void shuffle_sync(Warp& w, const Op& op, uint32_t mask) {
  uint32_t lanes = gather_members(w, op, mask, op.ref[5]);
  if (lanes != 0) shuffle_lanes(w, op, lanes);
}

bool lower_shfl(Lowering& l, const Instruction& i) {
  bool sync = i.has(Modifier::sync);
  if (i.types.size() != 1 || i.type() != Type::b32 || i.operands.size() != (sync ? 5u : 4u)) return false;
  if (i.has(Modifier::up) + i.has(Modifier::down) + i.has(Modifier::bfly) + i.has(Modifier::idx) != 1) return false;
  bool pair = i.operands[0].kind == Operand::Kind::pair;
  Ref a = l.source(i.operands[1], Type::b32), b = l.source(i.operands[2], Type::b32),
      c = l.source(i.operands[3], Type::b32);
  Ref members = sync ? l.source(i.operands[4], Type::b32) : Ref();
  Ref d = l.destination(pair ? i.operands[0].elements[0] : i.operands[0], Type::b32);
  Ref p = pair ? l.predicate_destination(i.operands[0].elements[1]) : l.temporary(kPredicateClass);
  Op& op = l.emit(sync ? &shuffle_sync : &shuffle_lanes, {d, p}, {a, b, c, members});
  op.detail = i.has(Modifier::up) ? kUp : i.has(Modifier::down) ? kDown : i.has(Modifier::bfly) ? kButterfly : kIndex;
  op.count = pair ? 2 : 1;
  l.keep_apart();
  return true;
}

// refs: d, p, a, members
template <class T>
void match_any(Warp& w, const Op& op, uint32_t mask) {
  uint32_t lanes = gather_members(w, op, mask, op.ref[3]);
  uint32_t* d = w.out<uint32_t>(op.ref[0]);
  const T* a = w.in<T>(op.ref[2]);
  each_group(lanes, w.in<uint32_t>(op.ref[3]), [&](uint32_t group, uint32_t) {
    each_group(group, a, [&](uint32_t same, T) { each_lane(same, [&](unsigned i) { d[i] = same; }); });
  });
}

template <class T>
void match_all(Warp& w, const Op& op, uint32_t mask) {
  uint32_t lanes = gather_members(w, op, mask, op.ref[3]);
  uint32_t* d = w.out<uint32_t>(op.ref[0]);
  const T* a = w.in<T>(op.ref[2]);
  each_group(lanes, w.in<uint32_t>(op.ref[3]), [&](uint32_t group, uint32_t) {
    bool same = true;
    T first = a[std::countr_zero(group)];
    each_lane(group, [&](unsigned i) { same &= a[i] == first; });
    each_lane(group, [&](unsigned i) { d[i] = same ? group : 0; });
    w.set_predicate(op.ref[1], group, same ? kAllLanes : 0);
  });
}

bool lower_match(Lowering& l, const Instruction& i) {
  if (!i.has(Modifier::sync) || i.has(Modifier::any) == i.has(Modifier::all) || i.types.size() != 1 ||
      i.operands.size() != 3)
    return false;
  bool pair = i.operands[0].kind == Operand::Kind::pair, all = i.has(Modifier::all), wide = i.type() == Type::b64;
  if ((pair && !all) || (!wide && i.type() != Type::b32)) return false;
  Ref a = l.source(i.operands[1], i.type()), members = l.source(i.operands[2], Type::b32);
  Ref d = l.destination(pair ? i.operands[0].elements[0] : i.operands[0], Type::b32);
  Ref p = pair ? l.predicate_destination(i.operands[0].elements[1]) : l.temporary(kPredicateClass);
  Handler handler =
      all ? (wide ? &match_all<uint64_t> : &match_all<uint32_t>) : (wide ? &match_any<uint64_t> : &match_any<uint32_t>);
  l.emit(handler, {d, p}, {a, members});
  l.keep_apart();
  return true;
}

struct ReduceAdd {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
};
struct ReduceMin {
  template <class T>
  static T apply(T a, T b) {
    return std::min(a, b);
  }
};
struct ReduceMax {
  template <class T>
  static T apply(T a, T b) {
    return std::max(a, b);
  }
};
struct ReduceAnd {
  template <class T>
  static T apply(T a, T b) {
    return a & b;
  }
};
struct ReduceOr {
  template <class T>
  static T apply(T a, T b) {
    return a | b;
  }
};
struct ReduceXor {
  template <class T>
  static T apply(T a, T b) {
    return a ^ b;
  }
};

// refs: d, a, members
template <class T, class F>
void reduce(Warp& w, const Op& op, uint32_t mask) {
  uint32_t lanes = gather_members(w, op, mask, op.ref[2]);
  T* d = w.out<T>(op.ref[0]);
  const T* a = w.in<T>(op.ref[1]);
  each_group(lanes, w.in<uint32_t>(op.ref[2]), [&](uint32_t group, uint32_t) {
    T result = a[std::countr_zero(group)];
    each_lane(group & (group - 1), [&](unsigned i) { result = F::template apply<T>(result, a[i]); });
    each_lane(group, [&](unsigned i) { d[i] = result; });
  });
}

template <class F>
Handler reduce_handler(Type type, bool arithmetic) {
  if (!arithmetic) return type == Type::b32 ? &reduce<uint32_t, F> : nullptr;
  return type == Type::u32 ? &reduce<uint32_t, F> : type == Type::s32 ? &reduce<int32_t, F> : nullptr;
}

bool lower_redux(Lowering& l, const Instruction& i) {
  if (!i.has(Modifier::sync) || i.types.size() != 1 || i.operands.size() != 3) return false;
  Handler handler = i.has(Modifier::add)    ? reduce_handler<ReduceAdd>(i.type(), true)
                    : i.has(Modifier::min)  ? reduce_handler<ReduceMin>(i.type(), true)
                    : i.has(Modifier::max)  ? reduce_handler<ReduceMax>(i.type(), true)
                    : i.has(Modifier::and_) ? reduce_handler<ReduceAnd>(i.type(), false)
                    : i.has(Modifier::or_)  ? reduce_handler<ReduceOr>(i.type(), false)
                    : i.has(Modifier::xor_) ? reduce_handler<ReduceXor>(i.type(), false)
                                            : nullptr;
  Ref a = l.source(i.operands[1], i.type()), members = l.source(i.operands[2], Type::b32);
  l.emit(handler, {l.destination(i.operands[0], i.type())}, {a, members});
  l.keep_apart();
  return true;
}

// refs: d, p, members. Elects one lane of each group, here the first.
void elect(Warp& w, const Op& op, uint32_t mask) {
  uint32_t lanes = gather_members(w, op, mask, op.ref[2]);
  uint32_t* d = w.out<uint32_t>(op.ref[0]);
  each_group(lanes, w.in<uint32_t>(op.ref[2]), [&](uint32_t group, uint32_t) {
    const auto leader = static_cast<uint32_t>(std::countr_zero(group));
    each_lane(group, [&](unsigned i) { d[i] = leader; });
    w.set_predicate(op.ref[1], group, 1u << leader);
  });
}

bool lower_elect(Lowering& l, const Instruction& i) {
  if (!i.has(Modifier::sync) || i.operands.size() != 2 || i.operands[0].kind != Operand::Kind::pair) return false;
  Ref members = l.source(i.operands[1], Type::b32);
  l.emit(&elect,
         {l.destination(i.operands[0].elements[0], Type::b32), l.predicate_destination(i.operands[0].elements[1])},
         {members});
  l.keep_apart();
  return true;
}

void active_mask(Warp& w, const Op& op, uint32_t mask) {
  uint32_t* d = w.out<uint32_t>(op.ref[0]);
  each_lane(mask, [&](unsigned i) { d[i] = mask; });
}

bool lower_activemask(Lowering& l, const Instruction& i) {
  if (i.operands.size() != 1 || i.type() != Type::b32) return false;
  l.emit(&active_mask, {l.destination(i.operands[0], Type::b32)}, {});
  return true;
}

// bar.warp.sync: lanes may meet at different instructions.
void warp_barrier(Warp& w, const Op& op, uint32_t mask) {
  const uint32_t* members = w.in<uint32_t>(op.ref[0]);
  uint32_t waiting = mask;
  for (const Fragment& other : w.fragments()) {
    if (other.state == Fragment::State::at_exchange && other.pc->run == &warp_barrier) waiting |= other.mask;
  }
  uint32_t incomplete = 0, wanted = 0;
  each_lane(mask, [&](unsigned i) {
    bool missing = (members[i] & w.live_ & ~waiting) != 0;
    incomplete |= static_cast<uint32_t>(missing) << i;
    if (!missing) wanted |= members[i];
  });
  bool woke = false;
  for (Fragment& other : w.fragments()) {
    if (other.state != Fragment::State::at_exchange || other.pc->run != &warp_barrier || (other.mask & ~wanted) != 0)
      continue;
    other.state = Fragment::State::ready;
    ++other.pc;
    woke = true;
  }
  if (incomplete != 0) w.wait_for_exchange(incomplete, op);
  if (woke && w.active_ != 0) w.meet();
}

constexpr ModifierSet kSync(Modifier::sync);

const OpcodeEntry kOpcodes[] = {
    {"vote", kSync | ModifierSet(Modifier::all, Modifier::any, Modifier::uni, Modifier::ballot), lower_vote},
    {"shfl", kSync | ModifierSet(Modifier::up, Modifier::down, Modifier::bfly, Modifier::idx), lower_shfl},
    {"match", kSync | ModifierSet(Modifier::any, Modifier::all), lower_match},
    {"redux",
     kSync | ModifierSet(Modifier::add, Modifier::min, Modifier::max, Modifier::and_, Modifier::or_, Modifier::xor_),
     lower_redux},
    {"activemask", ModifierSet(), lower_activemask},
    {"elect", kSync, lower_elect},
};

}  // namespace

std::span<const OpcodeEntry> warp_opcodes() { return kOpcodes; }

bool lower_warp_barrier(Lowering& l, const Instruction& i) {
  if (!i.has(Modifier::sync) || i.operands.size() != 1) return false;
  Ref members = l.source(i.operands[0], Type::b32);
  l.emit(&warp_barrier, {}, {members});
  return true;
}

}  // namespace gpuwire::software_device
