// Moves, packing, addresses, clocks: PTX ISA 9.0, sections 9.7.9.3 (mov), 9.7.9.20 (isspacep, cvta), 10.
#include <chrono>

#include "server/software_device/execution/address_spaces.hpp"
#include "server/software_device/execution/handlers.hpp"
#include "server/software_device/execution/lanes.hpp"
#include "server/software_device/execution/running_launch.hpp"

namespace gpuwire::software_device {

using ptx::Instruction;
using ptx::Modifier;
using ptx::ModifierSet;
using ptx::Operand;
using ptx::Type;

namespace {

template <class T>
struct Copy {
  static void run(Warp& w, const Op& op, uint32_t m) {
    map1<T, T>(w, op, m, [](T a) { return a; });
  }
};

template <class D, class A>
void resize(Warp& w, const Op& op, uint32_t m) {
  map1<D, A>(w, op, m, [](A a) { return static_cast<D>(a); });
}

template <class D>
Handler resize_from(uint32_t from, bool sign) {
  switch (from) {
    case 1: return sign ? &resize<D, int8_t> : &resize<D, uint8_t>;
    case 2: return sign ? &resize<D, int16_t> : &resize<D, uint16_t>;
    case 4: return sign ? &resize<D, int32_t> : &resize<D, uint32_t>;
    case 8: return &resize<D, uint64_t>;
    default: return nullptr;
  }
}

template <class T>
void fill(Warp& w, const Op& op, uint32_t mask, T value) {
  T* d = w.out<T>(op.ref[0]);
  if (w.whole(mask)) {
    for (unsigned i = 0; i < kLanes; ++i) d[i] = value;
  } else {
    each_lane(mask, [&](unsigned i) { d[i] = value; });
  }
}

uint64_t clock_value(const Warp& w, ClockSpecial which) {
  using std::chrono::duration_cast;
  using std::chrono::nanoseconds;
  uint64_t steady =
      static_cast<uint64_t>(duration_cast<nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
  switch (which) {
    case ClockSpecial::clock:
    case ClockSpecial::clock64: return steady;
    case ClockSpecial::clock_hi: return steady >> 32;
    case ClockSpecial::gridid: return w.launch_->grid_id();
    default: break;
  }
  uint64_t wall =
      static_cast<uint64_t>(duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count());
  return which == ClockSpecial::globaltimer_hi ? wall >> 32 : wall;
}

void copy_predicate(Warp& w, const Op& op, uint32_t mask) { w.set_predicate(op.ref[0], mask, w.predicate(op.ref[1])); }

// Joins `count` registers to one value, lowest part first.
template <class D, class A>
void pack(Warp& w, const Op& op, uint32_t mask) {
  D* d = w.out<D>(op.ref[0]);
  const A* parts[8];
  for (unsigned k = 0; k < op.count; ++k) parts[k] = w.in<A>(op.ref[1 + k]);
  D result[kLanes];
  each_lane(mask, [&](unsigned i) {
    D value = 0;
    for (unsigned k = op.count; k-- > 0;)
      value = static_cast<D>(static_cast<uint64_t>(value) << (8 * sizeof(A)) | parts[k][i]);
    result[i] = value;
  });
  each_lane(mask, [&](unsigned i) { d[i] = result[i]; });
}

template <class D, class A>
void unpack(Warp& w, const Op& op, uint32_t mask) {
  const A* a = w.in<A>(op.ref[op.count]);
  A whole[kLanes];
  each_lane(mask, [&](unsigned i) { whole[i] = a[i]; });
  for (unsigned k = 0; k < op.count; ++k) {
    D* d = w.out<D>(op.ref[k]);
    each_lane(mask, [&](unsigned i) { d[i] = static_cast<D>(whole[i] >> (8 * sizeof(D) * k)); });
  }
}

Handler pack_handler(uint32_t whole, uint32_t part) {
  if (whole == 8 && part == 4) return &pack<uint64_t, uint32_t>;
  if (whole == 8 && part == 2) return &pack<uint64_t, uint16_t>;
  if (whole == 8 && part == 1) return &pack<uint64_t, uint8_t>;
  if (whole == 4 && part == 2) return &pack<uint32_t, uint16_t>;
  if (whole == 4 && part == 1) return &pack<uint32_t, uint8_t>;
  if (whole == 2 && part == 1) return &pack<uint16_t, uint8_t>;
  return nullptr;
}

Handler unpack_handler(uint32_t whole, uint32_t part) {
  if (whole == 8 && part == 4) return &unpack<uint32_t, uint64_t>;
  if (whole == 8 && part == 2) return &unpack<uint16_t, uint64_t>;
  if (whole == 8 && part == 1) return &unpack<uint8_t, uint64_t>;
  if (whole == 4 && part == 2) return &unpack<uint16_t, uint32_t>;
  if (whole == 4 && part == 1) return &unpack<uint8_t, uint32_t>;
  if (whole == 2 && part == 1) return &unpack<uint8_t, uint16_t>;
  return nullptr;
}

bool lower_pack(Lowering& l, const Instruction& i) {
  const Operand& parts = i.operands[1];
  size_t count = parts.elements.size();
  uint32_t whole = ptx::size_of(i.type());
  if (count != 2 && count != 4 && count != 8) return false;
  uint32_t part = whole / static_cast<uint32_t>(count);
  if (part == 0 || count > kRefsPerOp - 1) return false;
  Ref sources[kRefsPerOp];
  for (size_t k = 0; k < count; ++k) sources[k] = l.source(parts.elements[k], ptx::bits_of_size(part));
  Ref d = l.destination(i.operands[0], i.type());
  l.emit(pack_handler(whole, part), std::span<const Ref>(&d, 1), std::span<const Ref>(sources, count)).count =
      static_cast<uint8_t>(count);
  return true;
}

bool lower_unpack(Lowering& l, const Instruction& i) {
  const Operand& parts = i.operands[0];
  size_t count = parts.elements.size();
  uint32_t whole = ptx::size_of(i.type());
  if (count != 2 && count != 4) return false;
  uint32_t part = whole / static_cast<uint32_t>(count);
  if (part == 0) return false;
  Ref source = l.source(i.operands[1], i.type());
  Ref results[kRefsPerOp];
  for (size_t k = 0; k < count; ++k) results[k] = l.destination(parts.elements[k], ptx::bits_of_size(part));
  l.emit(unpack_handler(whole, part), std::span<const Ref>(results, count), std::span<const Ref>(&source, 1)).count =
      static_cast<uint8_t>(count);
  return true;
}

bool lower_mov(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.operands.size() != 2) return false;
  if (i.type() == Type::pred) {
    Ref source = l.predicate_source(i.operands[1]);
    l.emit(&copy_predicate, {l.predicate_destination(i.operands[0])}, {source});
    return true;
  }
  if (i.operands[1].kind == Operand::Kind::vector) return lower_pack(l, i);
  if (i.operands[0].kind == Operand::Kind::vector) return lower_unpack(l, i);
  uint32_t to = ptx::size_of(i.type()), from = to;
  // Special registers have widths of their own: reading %clock into a 64-bit register and %tid into a 16-bit one is
  // allowed.
  bool special = i.operands[1].kind == Operand::Kind::special;
  Ref source = special ? l.wide_source(i.operands[1], i.type(), from) : l.source(i.operands[1], i.type());
  Handler handler = from == to ? move_handler(to) : resize_handler(from, to, false);
  l.emit(handler, {l.destination(i.operands[0], i.type())}, {source});
  return true;
}

// Global and constant addresses are generic addresses; shared, local and parameter addresses are in windows.
template <class T>
void to_generic(Warp& w, const Op& op, uint32_t mask) {
  uint64_t window = op.immediate;
  map1<T, T>(w, op, mask, [=](T a) { return static_cast<T>(a + window); });
}

bool lower_cvta(Lowering& l, const Instruction& i) {
  if (i.types.size() != 1 || i.operands.size() != 2 || ptx::size_of(i.type()) != 8) return false;
  uint64_t window = i.has(Modifier::shared)  ? kSharedWindow
                    : i.has(Modifier::local) ? kLocalWindow
                    : i.has(Modifier::param) ? kParameterWindow
                                             : 0;
  if (i.has(Modifier::to)) window = 0 - window;
  uint32_t bytes = 8;
  Ref source = l.wide_source(i.operands[1], i.type(), bytes);
  Ref result = l.destination(i.operands[0], i.type());
  if (window == 0) {
    l.emit(move_handler(8), {result}, {source});
  } else {
    l.emit(&to_generic<uint64_t>, {result}, {source}).immediate = window;
  }
  return true;
}

void is_space(Warp& w, const Op& op, uint32_t mask) {
  const uint64_t* a = w.in<uint64_t>(op.ref[1]);
  uint32_t bits = 0;
  each_lane(mask, [&](unsigned i) {
    uint64_t window = a[i] & kWindowMask;
    bool in_window = window == kSharedWindow || window == kLocalWindow || window == kParameterWindow;
    bool yes = op.immediate == 0 ? !in_window : window == op.immediate;
    // .shared without a suffix is the block's own memory.
    uint64_t number = (a[i] & kClusterRankMask) >> kClusterRankShift;
    if (op.detail != 0 && number != 0 && number != w.block_->rank() + 1) yes = false;
    bits |= static_cast<uint32_t>(yes) << i;
  });
  w.set_predicate(op.ref[0], mask, bits);
}

bool lower_isspacep(Lowering& l, const Instruction& i) {
  if (i.operands.size() != 2) return false;
  if (i.has(Modifier::const_)) return l.unsupported("'isspacep.const' is not supported by the software device");
  uint64_t window = i.has(Modifier::shared)  ? kSharedWindow
                    : i.has(Modifier::local) ? kLocalWindow
                    : i.has(Modifier::param) ? kParameterWindow
                                             : 0;
  if (window == 0 && !i.has(Modifier::global)) return false;
  Ref source = l.source(i.operands[1], Type::b64);
  Op& op = l.emit(&is_space, {l.predicate_destination(i.operands[0])}, {source});
  op.immediate = window;
  op.detail = window == kSharedWindow && !i.has(Modifier::shared_cluster);
  return true;
}

constexpr ModifierSet kSpaces(Modifier::global, Modifier::shared, Modifier::shared_cluster, Modifier::local,
                              Modifier::const_, Modifier::param);

const OpcodeEntry kOpcodes[] = {
    {"mov", ModifierSet(), lower_mov},
    {"cvta", kSpaces | ModifierSet(Modifier::to), lower_cvta},
    {"isspacep", kSpaces, lower_isspacep},
};

}  // namespace

std::span<const OpcodeEntry> move_opcodes() { return kOpcodes; }

void handle_predicate_not(Warp& w, const Op& op, uint32_t mask) {
  w.set_predicate(op.ref[0], mask, ~w.predicate(op.ref[1]));
}

void handle_clock32(Warp& w, const Op& op, uint32_t mask) {
  fill<uint32_t>(w, op, mask, static_cast<uint32_t>(clock_value(w, static_cast<ClockSpecial>(op.detail))));
}

void handle_clock64(Warp& w, const Op& op, uint32_t mask) {
  fill<uint64_t>(w, op, mask, clock_value(w, static_cast<ClockSpecial>(op.detail)));
}

void handle_local_address32(Warp& w, const Op& op, uint32_t mask) {
  fill<uint32_t>(w, op, mask, static_cast<uint32_t>(w.frame_->local_base + op.immediate));
}

void handle_local_address64(Warp& w, const Op& op, uint32_t mask) {
  fill<uint64_t>(w, op, mask, w.frame_->local_base + op.immediate);
}

void handle_symbol_address32(Warp& w, const Op& op, uint32_t mask) {
  fill<uint32_t>(w, op, mask, static_cast<uint32_t>(w.launch_->symbol_value(op.target) + op.immediate));
}

void handle_symbol_address64(Warp& w, const Op& op, uint32_t mask) {
  fill<uint64_t>(w, op, mask, w.launch_->symbol_value(op.target) + op.immediate);
}

Handler add_window_handler() { return &to_generic<uint64_t>; }

Handler move_handler(uint32_t bytes) {
  switch (bytes) {
    case 1: return &Copy<uint8_t>::run;
    case 2: return &Copy<uint16_t>::run;
    case 4: return &Copy<uint32_t>::run;
    case 8: return &Copy<uint64_t>::run;
    default: return nullptr;
  }
}

Handler resize_handler(uint32_t from_bytes, uint32_t to_bytes, bool sign) {
  switch (to_bytes) {
    case 1: return resize_from<uint8_t>(from_bytes, sign);
    case 2: return resize_from<uint16_t>(from_bytes, sign);
    case 4: return resize_from<uint32_t>(from_bytes, sign);
    case 8: return resize_from<uint64_t>(from_bytes, sign);
    default: return nullptr;
  }
}

}  // namespace gpuwire::software_device
