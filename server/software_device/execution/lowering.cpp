#include "server/software_device/execution/lowering.hpp"

#include <algorithm>
#include <bit>

#include "server/software_device/execution/handlers.hpp"
#include "server/software_device/execution/linker.hpp"
#include "server/software_device/execution/slot_assignment.hpp"
#include "server/software_device/execution/special_registers.hpp"
#include "server/software_device/ptx/limits.hpp"

namespace gpuwire::software_device {

using ptx::Instruction;
using ptx::Operand;
using ptx::Space;
using ptx::Type;

namespace {

uint32_t align_up(uint32_t value, uint32_t alignment) { return (value + alignment - 1) / alignment * alignment; }

std::string spelled(const Instruction& instruction) {
  return "'" + std::string(instruction.opcode.substr(0, 60)) + "'";
}

}  // namespace

Lowering::Lowering(Linker& linker, const ptx::Function& source, uint32_t module, CompiledFunction& target)
    : linker_(linker), source_(source), module_(module), target_(target) {}

bool Lowering::fail(bool unsupported, std::string message) {
  if (!failed_) linker_.fail(unsupported, current_ ? current_->line : source_.line, std::move(message));
  failed_ = true;
  return false;
}

bool Lowering::invalid(std::string message) { return fail(false, std::move(message)); }
bool Lowering::unsupported(std::string message) { return fail(true, std::move(message)); }

bool Lowering::run() {
  target_.name = source_.name;
  target_.register_count = static_cast<uint32_t>(source_.registers.size());
  for (Type type : source_.registers) {
    registers_.push_back({static_cast<uint8_t>(ptx::size_of(type)), false, false});
  }
  place_parameters();
  for (const Instruction& instruction : source_.instructions) {
    current_ = &instruction;
    op_of_instruction_.push_back(static_cast<uint32_t>(target_.ops.size()));
    if (!lower(instruction)) return false;
  }
  op_of_instruction_.push_back(static_cast<uint32_t>(target_.ops.size()));
  Instruction end;
  end.line = source_.instructions.empty() ? source_.line : source_.instructions.back().line;
  current_ = &end;
  emit(&handle_return, {}, {});
  fix_targets();
  current_ = nullptr;
  if (failed_) return false;
  SlotAssignment(*this).run();
  return !failed_;
}

bool Lowering::lower(const Instruction& instruction) {
  const OpcodeEntry* entry = find_opcode(instruction.opcode);
  if (entry == nullptr) {
    if (known_to_ptx(instruction.opcode))
      return unsupported("instruction " + spelled(instruction) + " is not supported by the software device");
    return invalid("unknown instruction " + spelled(instruction));
  }
  if (!instruction.unknown_word.empty()) {
    return unsupported("instruction " + spelled(instruction) + " with '." +
                       std::string(instruction.unknown_word.substr(0, 40)) +
                       "' is not supported by the software device");
  }
  if (!entry->allowed.contains(instruction.modifiers)) {
    return unsupported("this form of instruction " + spelled(instruction) + " is not supported by the software device");
  }
  if (entry->lower(*this, instruction) && !failed_) return true;
  return unsupported("this form of instruction " + spelled(instruction) + " is not supported by the software device");
}

// A .param variable is a scalar if every access reads or writes all of it.
void Lowering::find_scalar_parameters(std::vector<uint8_t>& scalar) const {
  for (size_t i = 0; i < source_.variables.size(); ++i) {
    uint64_t bytes = source_.variables[i].size_bytes;
    scalar.push_back(source_.variables[i].space == Space::param &&
                     (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8));
  }
  for (const Instruction& instruction : source_.instructions) {
    for (const Operand& operand : instruction.operands) {
      if (operand.kind == Operand::Kind::variable) scalar[operand.index] = false;
      if (operand.kind != Operand::Kind::address) continue;
      for (const Operand& base : operand.elements) {
        if (base.kind != Operand::Kind::variable) continue;
        bool whole = operand.addend == 0 && !instruction.has(ptx::Modifier::v2) &&
                     !instruction.has(ptx::Modifier::v4) &&
                     ptx::size_of(instruction.type()) == source_.variables[base.index].size_bytes;
        if (!whole) scalar[base.index] = false;
      }
    }
  }
}

void Lowering::place_parameters() {
  std::vector<uint8_t> scalar;
  find_scalar_parameters(scalar);
  std::vector<uint8_t> formal(source_.variables.size()), result(source_.variables.size());
  for (const ptx::Formal& f : source_.parameters) {
    if (!f.in_register) formal[f.index] = 1;
    else registers_[f.index].formal = true;
  }
  for (const ptx::Formal& f : source_.results) {
    if (!f.in_register) result[f.index] = 1;
    else registers_[f.index].pinned = registers_[f.index].formal = true;
  }
  uint32_t entry_offset = 0;
  uint64_t local_offset = 0;
  for (size_t i = 0; i < source_.variables.size(); ++i) {
    const ptx::Variable& variable = source_.variables[i];
    ParameterPlace place;
    local_offsets_.push_back(0);
    place.bytes = static_cast<uint32_t>(variable.size_bytes);
    if (variable.space == Space::local) {
      local_offset =
          (local_offset + variable.alignment_bytes - 1) / variable.alignment_bytes * variable.alignment_bytes;
      local_offsets_.back() = static_cast<uint32_t>(local_offset);
      local_offset += variable.size_bytes;
      if (local_offset > ptx::kLocalBytesMax) {
        invalid("too much local memory");
        local_offset = 0;
      }
    } else if (variable.space == Space::param && source_.entry && formal[i]) {
      place.entry = true;
      entry_offset = align_up(entry_offset, variable.alignment_bytes);
      place.offset = entry_offset;
      entry_offset += place.bytes;
    } else if (variable.space == Space::param && scalar[i]) {
      place.scalar = true;
      place.ref = new_register(place.bytes);
      registers_.back().formal = formal[i] || result[i];
      registers_.back().pinned = result[i];
    } else if (variable.space == Space::param) {
      place.ref = {Area::frame, fixed_bytes_};
      fixed_bytes_ += align_up(place.bytes * kLanes, 64);
      if (fixed_bytes_ > (64u << 20)) {
        invalid("too many parameters");
        fixed_bytes_ = 0;
      }
    }
    places_.push_back(place);
  }
  target_.local_bytes = align_up(static_cast<uint32_t>(local_offset), 16);
  auto slots_of = [&](const std::vector<ptx::Formal>& formals, std::vector<FrameSlot>& slots) {
    for (const ptx::Formal& f : formals) {
      if (f.in_register) slots.push_back({register_ref(f.index), registers_[f.index].bytes});
      else slots.push_back({places_[f.index].ref, places_[f.index].bytes});
      if (slots.back().bytes == 0) invalid("a predicate cannot be a parameter");
    }
  };
  if (!source_.entry) {
    slots_of(source_.parameters, target_.parameters);
    slots_of(source_.results, target_.results);
  }
}

Ref Lowering::new_register(uint32_t bytes) {
  registers_.push_back({static_cast<uint8_t>(bytes), false, false});
  return {Area::virtual_register, static_cast<uint32_t>(registers_.size() - 1)};
}

Ref Lowering::temporary(uint32_t bytes) { return new_register(bytes); }

Ref Lowering::constant(uint64_t bits, uint32_t bytes) { return linker_.constant(bits, bytes); }

uint32_t Lowering::register_bytes(const Operand& operand) const {
  return operand.kind == Operand::Kind::reg ? registers_[operand.index].bytes : 0;
}

bool Lowering::is_predicate(const Operand& operand) const {
  return operand.kind == Operand::Kind::reg && registers_[operand.index].bytes == 0;
}

Ref Lowering::real_constant(const Operand& operand, Type type) {
  if (type == Type::f64 || type == Type::b64) return constant(operand.value, 8);
  if (type == Type::f32 || type == Type::b32) return constant(operand.single, 4);
  invalid("a floating-point constant does not fit this type");
  return {};
}

Ref Lowering::source(const Operand& operand, Type type) {
  uint32_t bytes = 0;
  Ref ref = wide_source(operand, type, bytes);
  if (!failed_ && bytes != ptx::size_of(type)) invalid("operand's size does not match the instruction's type");
  return ref;
}

Ref Lowering::wide_source(const Operand& operand, Type type, uint32_t& bytes) {
  bytes = ptx::size_of(type);
  if (operand.negated) invalid("'!' before an operand that is no predicate");
  switch (operand.kind) {
    case Operand::Kind::reg:
      bytes = registers_[operand.index].bytes;
      if (bytes == 0) invalid("a predicate where a value is expected");
      if (bytes < ptx::size_of(type)) invalid("operand is too small for the instruction's type");
      return register_ref(operand.index);
    case Operand::Kind::integer:
      if (type == Type::f32)
        return constant(std::bit_cast<uint32_t>(static_cast<float>(static_cast<int64_t>(operand.value))), 4);
      if (type == Type::f64)
        return constant(std::bit_cast<uint64_t>(static_cast<double>(static_cast<int64_t>(operand.value))), 8);
      return constant(operand.value, bytes);
    case Operand::Kind::real: return real_constant(operand, type);
    case Operand::Kind::special: {
      auto special = special_register(operand.name, operand.index);
      if (!special) {
        unsupported("special register '" + std::string(operand.name.substr(0, 60)) + "' is not supported");
        return {};
      }
      if (special->clock) {
        bool wide = special->which == ClockSpecial::clock64 || special->which == ClockSpecial::globaltimer ||
                    special->which == ClockSpecial::gridid;
        bytes = wide && ptx::size_of(type) == 8 ? 8 : 4;
        Ref result = new_register(bytes);
        emit(bytes == 8 ? &handle_clock64 : &handle_clock32, {result}, {}).detail =
            static_cast<uint16_t>(special->which);
        return result;
      }
      bytes = 4;
      return special->ref;
    }
    case Operand::Kind::variable:
    case Operand::Kind::name: bytes = ptx::size_of(type) == 4 ? 4 : 8; return address_of(operand, bytes);
    default: invalid("operand is of the wrong kind"); return {};
  }
}

Ref Lowering::destination(const Operand& operand, Type type) {
  uint32_t bytes = 0;
  Ref ref = wide_destination(operand, type, bytes);
  if (!failed_ && bytes != ptx::size_of(type)) invalid("result's size does not match the instruction's type");
  return ref;
}

Ref Lowering::wide_destination(const Operand& operand, Type type, uint32_t& bytes) {
  bytes = ptx::size_of(type);
  if (operand.kind == Operand::Kind::sink) return new_register(bytes);
  if (operand.kind != Operand::Kind::reg) {
    invalid("the result must be a register");
    return {};
  }
  bytes = registers_[operand.index].bytes;
  if (bytes == 0) invalid("the result must not be a predicate");
  if (bytes < ptx::size_of(type)) invalid("the result's register is too small for the instruction's type");
  return register_ref(operand.index);
}

Ref Lowering::predicate_source(const Operand& operand) {
  if (operand.kind == Operand::Kind::integer) {
    return constant((operand.value != 0) != operand.negated ? 0xffffffffu : 0, 4);
  }
  if (operand.kind == Operand::Kind::special) {
    auto special = special_register(operand.name, operand.index);
    if (special && special->predicate) return operand.negated ? constant(0xffffffffu, 4) : special->ref;
  }
  if (!is_predicate(operand)) {
    invalid("expected a predicate");
    return {};
  }
  if (!operand.negated) return register_ref(operand.index);
  Ref result = new_register(kPredicateClass);
  emit(&handle_predicate_not, {result}, {register_ref(operand.index)});
  return result;
}

Ref Lowering::predicate_destination(const Operand& operand) {
  if (operand.kind == Operand::Kind::sink) return new_register(kPredicateClass);
  if (!is_predicate(operand) || operand.negated) {
    invalid("the result must be a predicate");
    return {};
  }
  return register_ref(operand.index);
}

Op& Lowering::emit(Handler handler, std::initializer_list<Ref> results, std::initializer_list<Ref> sources) {
  return emit(handler, std::span<const Ref>(results.begin(), results.size()),
              std::span<const Ref>(sources.begin(), sources.size()));
}

Op& Lowering::emit(Handler handler, std::span<const Ref> results, std::span<const Ref> sources) {
  Op op;
  op.run = handler;
  if (handler == nullptr) unsupported("instruction " + spelled(*current_) + " is not supported with this type");
  if (results.size() + sources.size() > kRefsPerOp) {
    invalid("too many operands");
  } else {
    std::copy(results.begin(), results.end(), op.ref);
    std::copy(sources.begin(), sources.end(), op.ref + results.size());
  }
  op.definitions = static_cast<uint8_t>(results.size());
  op.line = current_->line;
  if (current_->guarded) op.guard = current_->guard | (current_->guard_negated ? kGuardNegated : 0);
  target_.ops.push_back(op);
  apart_.push_back(0);
  branches_.push_back(kNoTarget);
  return target_.ops.back();
}

void Lowering::branch_to(uint32_t instruction) {
  target_.ops.back().target = instruction;
  branches_.back() = kBranchTarget;
}

uint32_t Lowering::add_table(std::vector<uint32_t> instructions) {
  target_.tables.push_back({std::move(instructions)});
  return static_cast<uint32_t>(target_.tables.size() - 1);
}

void Lowering::call_through(CallSite site) {
  target_.ops.back().target = static_cast<uint32_t>(target_.calls.size());
  branches_.back() = kCallSite;
  target_.calls.push_back(std::move(site));
}

int64_t Lowering::function_named(std::string_view name) { return linker_.function(module_, name); }

const ptx::Function* Lowering::declaration(std::string_view name) { return linker_.declaration(module_, name); }

void Lowering::fix_targets() {
  for (size_t i = 0; i < target_.ops.size(); ++i) {
    if (branches_[i] == kBranchTarget) target_.ops[i].target = op_of_instruction_[target_.ops[i].target];
  }
  for (BranchTable& table : target_.tables) {
    for (uint32_t& target : table.targets) target = op_of_instruction_[target];
  }
}

uint32_t Lowering::symbol(std::string_view name) {
  int64_t found = linker_.symbol(module_, name);
  if (found < 0) {
    invalid("'" + std::string(name.substr(0, 120)) + "' is not declared");
    return 0;
  }
  uint32_t index = static_cast<uint32_t>(found);
  if (std::find(target_.symbols.begin(), target_.symbols.end(), index) == target_.symbols.end())
    target_.symbols.push_back(index);
  return index;
}

Ref Lowering::address_of(const Operand& operand, uint32_t bytes) {
  uint32_t index = 0;
  if (operand.kind == Operand::Kind::variable) {
    const ptx::Variable& variable = source_.variables[operand.index];
    if (variable.space == Space::local) {
      Ref result = new_register(bytes);
      emit(bytes == 4 ? &handle_local_address32 : &handle_local_address64, {result}, {}).immediate =
          local_offsets_[operand.index] + static_cast<uint64_t>(operand.addend);
      return result;
    }
    if (variable.space == Space::param) {
      if (!places_[operand.index].entry) {
        unsupported("the address of a device function's parameter is not supported");
        return {};
      }
      return constant(places_[operand.index].offset + static_cast<uint64_t>(operand.addend), bytes);
    }
    int64_t found = linker_.local_shared_symbol(&source_, operand.index, variable);
    index = static_cast<uint32_t>(found);
    if (std::find(target_.symbols.begin(), target_.symbols.end(), index) == target_.symbols.end())
      target_.symbols.push_back(index);
  } else {
    index = symbol(operand.name);
    if (failed_) return {};
  }
  const Symbol& named = linker_.program().symbols_[index];
  if (bytes == 4 && named.kind != Symbol::Kind::shared && named.kind != Symbol::Kind::dynamic_shared) {
    invalid("the address needs 8 bytes");
    return {};
  }
  Ref result = new_register(bytes);
  Op& op = emit(bytes == 4 ? &handle_symbol_address32 : &handle_symbol_address64, {result}, {});
  op.immediate = static_cast<uint64_t>(operand.addend);
  op.target = index;
  return result;
}

bool Lowering::address(const Operand& operand, Address& result) {
  if (operand.kind != Operand::Kind::address || operand.elements.size() != 1) return invalid("expected an address");
  const Operand& base = operand.elements[0];
  result.offset = operand.addend;
  if (base.kind == Operand::Kind::reg) {
    result.base = source(base, registers_[base.index].bytes == 4 ? Type::b32 : Type::b64);
    result.base_bytes = registers_[base.index].bytes;
    return !failed_;
  }
  if (base.kind == Operand::Kind::integer) {
    result.base = constant(base.value, 8);
    return true;
  }
  if (base.kind == Operand::Kind::variable && source_.variables[base.index].space == Space::param) {
    result.parameter = true;
    result.variable = base.index;
    return true;
  }
  if (base.kind != Operand::Kind::variable && base.kind != Operand::Kind::name) return invalid("expected an address");
  result.base = address_of(base, 8);
  return !failed_;
}

}  // namespace gpuwire::software_device
