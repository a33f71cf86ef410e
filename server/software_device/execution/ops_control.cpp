// Control flow, calls, barriers, fences: PTX ISA 9.0, sections 9.7.12 and 9.7.13.
#include <algorithm>
#include <atomic>

#include "server/software_device/execution/cluster.hpp"
#include "server/software_device/execution/handlers.hpp"
#include "server/software_device/execution/intrinsics.hpp"
#include "server/software_device/execution/lanes.hpp"
#include "server/software_device/execution/linker.hpp"
#include "server/software_device/execution/running_launch.hpp"

namespace gpuwire::software_device {

using ptx::Instruction;
using ptx::Modifier;
using ptx::ModifierSet;
using ptx::Operand;
using ptx::Type;

namespace {

void handle_branch(Warp& w, const Op& op, uint32_t mask) { w.branch(mask, w.function().ops.data() + op.target); }

void handle_branch_table(Warp& w, const Op& op, uint32_t mask) {
  const uint32_t* index = w.in<uint32_t>(op.ref[0]);
  const std::vector<uint32_t>& table = w.function().tables[op.target].targets;
  const Op* targets[kLanes] = {};
  uint32_t outside = 0;
  each_lane(mask, [&](unsigned i) {
    if (index[i] < table.size()) targets[i] = w.function().ops.data() + table[index[i]];
    else outside |= 1u << i;
  });
  if (outside != 0) {
    return w.fault(Fault::invalid_pc, static_cast<uint32_t>(std::countr_zero(outside)), op,
                   "brx.idx index is outside of the table");
  }
  w.branch_many(targets, mask);
}

void handle_exit(Warp& w, const Op&, uint32_t mask) { w.exit(mask); }

void handle_call(Warp& w, const Op& op, uint32_t mask) {
  w.call(mask, *w.launch_->program().functions_[op.immediate], w.function().calls[op.target]);
}

// The lanes with the same target as the first lane are called; the others execute this op again.
void handle_indirect_call(Warp& w, const Op& op, uint32_t mask) {
  const uint64_t* address = w.in<uint64_t>(op.ref[0]);
  unsigned first = static_cast<unsigned>(std::countr_zero(mask));
  uint64_t target = address[first];
  uint32_t group = 0;
  each_lane(mask, [&](unsigned i) { group |= static_cast<uint32_t>(address[i] == target) << i; });
  const CallSite& site = w.function().calls[op.target];
  const CompiledFunction* callee = w.launch_->program().function_at(target);
  auto same_bytes = [](const std::vector<FrameSlot>& a, const std::vector<FrameSlot>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const FrameSlot& x, const FrameSlot& y) { return x.bytes == y.bytes; });
  };
  if (callee == nullptr || !same_bytes(callee->parameters, site.arguments) ||
      !same_bytes(callee->results, site.results)) {
    return w.fault(Fault::invalid_pc, first, op,
                   callee == nullptr ? "indirect call of an address that is no function's"
                                     : "indirect call of a function with other parameters");
  }
  uint32_t others = mask & ~group;
  if (others != 0) {
    w.fragments().push_back({&op, w.frame_, others});
    w.active_ &= ~others;
  }
  w.call(group, *callee, site);
}

void handle_trap(Warp& w, const Op& op, uint32_t mask) {
  w.fault(Fault::trap, static_cast<uint32_t>(std::countr_zero(mask)), op, op.detail ? "brkpt" : "trap");
}

void handle_fence(Warp&, const Op&, uint32_t) { std::atomic_thread_fence(std::memory_order_seq_cst); }

// Gives the other warps a turn.
void handle_nanosleep(Warp& w, const Op&, uint32_t) {
  if (w.stop_ == Warp::Stop::none) w.stop_ = Warp::Stop::yield;
}

enum BarrierDetail : uint16_t { kPopc, kAnd, kOr, kSync, kArrive };

// refs: [result] barrier, count, [predicate]
void handle_barrier(Warp& w, const Op& op, uint32_t mask) {
  const Ref* sources = op.ref + op.definitions;
  unsigned lane = static_cast<unsigned>(std::countr_zero(mask));
  uint32_t barrier = w.in<uint32_t>(sources[0])[lane];
  uint32_t expected = w.in<uint32_t>(sources[1])[lane];
  if (barrier >= kBarriers)
    return w.fault(Fault::illegal_instruction, lane, op, "there is no barrier " + std::to_string(barrier));
  uint32_t true_lanes = op.detail <= kOr ? w.predicate(sources[2]) & mask : 0;
  Block& block = *w.block_;
  if (op.detail != kArrive) w.wait_at_barrier(mask, barrier, op);
  block.arrive(w, mask, barrier, expected, true_lanes);
  block.complete_barriers();
}

bool lower_bra(Lowering& l, const Instruction& i) {
  if (i.operands.size() != 1 || i.operands[0].kind != Operand::Kind::label)
    return l.invalid("the branch's target is not a label");
  l.emit(&handle_branch, {}, {});
  l.branch_to(i.operands[0].index);
  return true;
}

bool lower_brx(Lowering& l, const Instruction& i) {
  if (!i.has(Modifier::idx) || i.operands.size() != 2 || i.operands[1].kind != Operand::Kind::table) return false;
  std::vector<uint32_t> targets;
  for (const Operand& target : l.source_function().tables[i.operands[1].index].targets) {
    if (target.kind != Operand::Kind::label) return l.invalid("a branch target is not a label");
    targets.push_back(target.index);
  }
  Ref index = l.source(i.operands[0], Type::b32);
  l.emit(&handle_branch_table, {}, {index}).target = l.add_table(std::move(targets));
  return true;
}

bool lower_ret(Lowering& l, const Instruction& i) {
  if (!i.operands.empty()) return false;
  l.emit(&handle_return, {}, {});
  return true;
}

bool lower_exit(Lowering& l, const Instruction&) {
  l.emit(&handle_exit, {}, {});
  return true;
}

bool lower_trap(Lowering& l, const Instruction& i) {
  l.emit(&handle_trap, {}, {}).detail = i.opcode == "brkpt";
  return true;
}

// Lowers the arguments or results of a call: .param variables, registers, or immediates of the width that the callee
// declares.
bool call_operands(Lowering& l, const Operand* list, const ptx::Function* callee, bool results,
                   std::vector<FrameSlot>& slots) {
  if (list == nullptr) return true;
  const std::vector<ptx::Formal>* formals = callee == nullptr ? nullptr
                                            : results         ? &callee->results
                                                              : &callee->parameters;
  for (size_t k = 0; k < list->elements.size(); ++k) {
    const Operand& operand = list->elements[k];
    if (operand.kind == Operand::Kind::variable) {
      const Lowering::ParameterPlace& place = l.parameter(operand.index);
      if (l.source_function().variables[operand.index].space != ptx::Space::param || place.entry) {
        return l.invalid("an argument must be a .param variable");
      }
      slots.push_back({place.ref, place.bytes});
      continue;
    }
    uint32_t bytes = l.register_bytes(operand);
    if (operand.kind == Operand::Kind::integer || operand.kind == Operand::Kind::real ||
        operand.kind == Operand::Kind::sink) {
      if (formals == nullptr || k >= formals->size())
        return l.invalid("a constant argument needs the function's declaration");
      const ptx::Formal& formal = (*formals)[k];
      bytes = formal.in_register ? ptx::size_of(callee->registers[formal.index])
                                 : static_cast<uint32_t>(callee->variables[formal.index].size_bytes);
      if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) return l.invalid("a constant cannot be this argument");
    }
    if (bytes == 0) return l.invalid("operand of a call is of the wrong kind");
    Type type = ptx::bits_of_size(bytes);
    slots.push_back({results ? l.destination(operand, type) : l.source(operand, type), bytes});
  }
  return true;
}

bool lower_intrinsic_call(Lowering& l, Intrinsic intrinsic, const CallSite& site) {
  const IntrinsicShape& shape = intrinsic_shape(intrinsic);
  if (site.arguments.size() != shape.argument_count || site.results.size() > 1)
    return l.invalid("call of a device function with wrong arguments");
  Ref sources[5], result[1];
  for (uint32_t k = 0; k < shape.argument_count; ++k) {
    if (site.arguments[k].bytes != shape.argument_bytes[k])
      return l.invalid("call of a device function with wrong arguments");
    sources[k] = site.arguments[k].ref;
  }
  if (shape.result_bytes != 0) {
    if (!site.results.empty() && site.results[0].bytes != shape.result_bytes)
      return l.invalid("call of a device function with a wrong result");
    result[0] = site.results.empty() ? l.temporary(shape.result_bytes) : site.results[0].ref;
  } else if (!site.results.empty()) {
    return l.invalid("call of a device function with a wrong result");
  }
  l.emit(intrinsic_handler(intrinsic), std::span<const Ref>(result, shape.result_bytes != 0),
         std::span<const Ref>(sources, shape.argument_count));
  l.keep_apart();
  return true;
}

bool lower_direct_call(Lowering& l, const Operand& name, CallSite site) {
  if (Intrinsic intrinsic = intrinsic_named(name.name);
      intrinsic != Intrinsic::none && l.function_named(name.name) < 0) {
    return lower_intrinsic_call(l, intrinsic, site);
  }
  int64_t callee = l.function_named(name.name);
  if (callee < 0) return l.invalid("call of '" + std::string(name.name.substr(0, 120)) + "', which is not defined");
  const ptx::Function& body = l.linker().body(static_cast<uint32_t>(callee));
  if (body.entry) return l.invalid("a kernel cannot be called");
  auto bytes_of = [&](const ptx::Formal& formal) {
    return formal.in_register ? ptx::size_of(body.registers[formal.index])
                              : static_cast<uint32_t>(body.variables[formal.index].size_bytes);
  };
  auto fits = [&](const std::vector<ptx::Formal>& formals, const std::vector<FrameSlot>& slots) {
    return std::equal(formals.begin(), formals.end(), slots.begin(), slots.end(),
                      [&](const ptx::Formal& f, const FrameSlot& s) { return bytes_of(f) == s.bytes; });
  };
  if (!fits(body.parameters, site.arguments) || !fits(body.results, site.results))
    return l.invalid("arguments do not fit the function's declaration");
  l.emit(&handle_call, {}, {}).immediate = static_cast<uint64_t>(callee);
  l.call_through(std::move(site));
  l.target().callees.push_back(static_cast<uint32_t>(callee));
  return true;
}

// call (results), function, (arguments), table;   all but the function may be missing
bool lower_call(Lowering& l, const Instruction& i) {
  size_t at = 0;
  const Operand* results = nullptr;
  const Operand* arguments = nullptr;
  if (at < i.operands.size() && i.operands[at].kind == Operand::Kind::list) results = &i.operands[at++];
  if (at >= i.operands.size()) return l.invalid("a call needs a function");
  const Operand& function = i.operands[at++];
  if (at < i.operands.size() && i.operands[at].kind == Operand::Kind::list) arguments = &i.operands[at++];
  bool table = at < i.operands.size();
  if (table && (i.operands[at].kind != Operand::Kind::table && i.operands[at].kind != Operand::Kind::name))
    return false;
  if (at + table != i.operands.size()) return false;
  CallSite site;
  bool direct = function.kind == Operand::Kind::name;
  const ptx::Function* declared = direct ? l.declaration(function.name) : nullptr;
  if (!call_operands(l, arguments, declared, false, site.arguments)) return false;
  if (!call_operands(l, results, declared, true, site.results)) return false;
  if (direct) return lower_direct_call(l, function, std::move(site));
  Ref target = l.source(function, Type::b64);
  l.emit(&handle_indirect_call, {}, {target});
  l.call_through(std::move(site));
  l.target().calls_indirectly = true;
  return true;
}

void handle_cluster_arrive(Warp& w, const Op&, uint32_t mask) { w.block_->cluster().arrive(w, mask); }

void handle_cluster_wait(Warp& w, const Op& op, uint32_t mask) {
  if (uint32_t waiting = w.block_->cluster().must_wait(w, mask); waiting != 0) w.wait_at_cluster_barrier(waiting, op);
}

bool lower_cluster_barrier(Lowering& l, const Instruction& i) {
  if (i.has(Modifier::arrive) == i.has(Modifier::wait) || !i.operands.empty()) return false;
  l.emit(i.has(Modifier::arrive) ? &handle_cluster_arrive : &handle_cluster_wait, {}, {});
  return true;
}

// bar.sync a{, b};  bar.arrive a, b;  bar.red.op d, a{, b}, {!}p;  barrier.cta.… likewise
bool lower_barrier(Lowering& l, const Instruction& i) {
  if (i.has(Modifier::cluster)) return lower_cluster_barrier(l, i);
  if (i.has(Modifier::warp) || i.has(Modifier::wait) || i.has(Modifier::acquire) || i.has(Modifier::release) ||
      i.has(Modifier::relaxed))
    return false;
  bool red = i.has(Modifier::red), arrive = i.has(Modifier::arrive);
  if (red + arrive + i.has(Modifier::sync) != 1) return false;
  size_t at = red ? 1 : 0, end = i.operands.size() - (red ? 1 : 0);
  if (i.operands.size() < (red ? 3u : 1u) || end - at > 2 || end <= at) return false;
  Ref barrier = l.source(i.operands[at], Type::b32);
  Ref count = end - at == 2 ? l.source(i.operands[at + 1], Type::b32) : l.constant(0, 4);
  if (arrive && end - at != 2) return l.invalid("bar.arrive needs a thread count");
  if (!red) {
    l.emit(&handle_barrier, {}, {barrier, count}).detail = arrive ? kArrive : kSync;
    return true;
  }
  Ref predicate = l.predicate_source(i.operands.back());
  uint16_t detail = i.has(Modifier::popc) ? kPopc : i.has(Modifier::and_) ? kAnd : kOr;
  Ref result = detail == kPopc ? l.destination(i.operands[0], Type::b32) : l.predicate_destination(i.operands[0]);
  l.emit(&handle_barrier, {result}, {barrier, count, predicate}).detail = detail;
  return true;
}

bool lower_fence(Lowering& l, const Instruction& i) {
  if (!i.operands.empty()) return false;
  l.emit(&handle_fence, {}, {});
  return true;
}

bool lower_nanosleep(Lowering& l, const Instruction&) {
  l.emit(&handle_nanosleep, {}, {});
  return true;
}

bool lower_nothing(Lowering&, const Instruction&) { return true; }

bool lower_bar(Lowering& l, const Instruction& i);

const OpcodeEntry kOpcodes[] = {
    {"bra", ModifierSet(Modifier::uni), lower_bra},
    {"brx", ModifierSet(Modifier::idx, Modifier::uni), lower_brx},
    {"call", ModifierSet(Modifier::uni), lower_call},
    {"ret", ModifierSet(Modifier::uni), lower_ret},
    {"exit", ModifierSet(), lower_exit},
    {"trap", ModifierSet(), lower_trap},
    {"brkpt", ModifierSet(), lower_trap},
    {"bar",
     ModifierSet(Modifier::cta, Modifier::sync, Modifier::arrive, Modifier::red, Modifier::popc, Modifier::and_,
                 Modifier::or_, Modifier::warp, Modifier::aligned),
     lower_bar},
    {"barrier",
     ModifierSet(Modifier::cluster, Modifier::wait, Modifier::acquire, Modifier::release, Modifier::relaxed,
                 Modifier::cta, Modifier::sync, Modifier::arrive, Modifier::red, Modifier::popc, Modifier::and_,
                 Modifier::or_, Modifier::aligned),
     lower_barrier},
    {"membar", ModifierSet(Modifier::cta, Modifier::gpu, Modifier::sys), lower_fence},
    {"fence",
     ModifierSet(Modifier::cta, Modifier::gpu, Modifier::sys, Modifier::sc, Modifier::acq_rel, Modifier::acquire,
                 Modifier::release, Modifier::cluster, Modifier::proxy, Modifier::async, Modifier::async_generic,
                 Modifier::alias, Modifier::mbarrier_init),
     lower_fence},
    {"nanosleep", ModifierSet(), lower_nanosleep},
    {"pmevent", ModifierSet(), lower_nothing},
    // A kernel begins when all its dependencies have ended, and its dependents begin when it has ended.
    {"griddepcontrol", ModifierSet(Modifier::wait, Modifier::launch_dependents), lower_nothing},
};

bool lower_bar(Lowering& l, const Instruction& i) {
  return i.has(Modifier::warp) ? lower_warp_barrier(l, i) : lower_barrier(l, i);
}

}  // namespace

std::span<const OpcodeEntry> control_opcodes() { return kOpcodes; }

void handle_return(Warp& w, const Op&, uint32_t mask) { w.leave(mask); }

bool handles_jump_without_return(Handler handler) {
  return handler == &handle_branch || handler == &handle_branch_table || handler == &handle_return ||
         handler == &handle_exit || handler == &handle_trap;
}

bool handles_table_branch(Handler handler) { return handler == &handle_branch_table; }

}  // namespace gpuwire::software_device
