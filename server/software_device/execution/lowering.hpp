// Converts one PTX function to ops. The ops_*.cpp files lower the instructions, each with a table of its opcodes; this
// class provides operands, emission and errors.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/software_device/execution/program.hpp"
#include "server/software_device/ptx/module.hpp"

namespace gpuwire::software_device {

class Lowering;
class Linker;

struct OpcodeEntry {
  std::string_view name;
  ptx::ModifierSet allowed;  // any other modifier is refused, because it would change the instruction's meaning
  bool (*lower)(Lowering&, const ptx::Instruction&) = nullptr;  // returns false if this form is not supported
};

std::span<const OpcodeEntry> integer_opcodes();
std::span<const OpcodeEntry> bit_opcodes();
std::span<const OpcodeEntry> float_opcodes();
std::span<const OpcodeEntry> special_function_opcodes();
std::span<const OpcodeEntry> compare_opcodes();
std::span<const OpcodeEntry> convert_opcodes();
std::span<const OpcodeEntry> move_opcodes();
std::span<const OpcodeEntry> memory_opcodes();
std::span<const OpcodeEntry> atomic_opcodes();
std::span<const OpcodeEntry> control_opcodes();
std::span<const OpcodeEntry> warp_opcodes();
std::span<const OpcodeEntry> texture_opcodes();
std::span<const OpcodeEntry> mbarrier_opcodes();

// Returns nullptr for an unknown instruction. `known_to_ptx` distinguishes an instruction that only this device lacks
// from a misspelt one.
const OpcodeEntry* find_opcode(std::string_view name);
bool known_to_ptx(std::string_view name);

// Names that two families share. One family has the entry and calls the other's function.
bool lower_integer_arithmetic(Lowering& l, const ptx::Instruction& i);  // add, sub, mul, mad, div, min, max, neg, abs
bool lower_warp_barrier(Lowering& l, const ptx::Instruction& i);        // bar.warp.sync
bool lower_bulk_copy(Lowering& l, const ptx::Instruction& i);           // cp.async.bulk
bool lower_arrive_of_copies(Lowering& l, const ptx::Instruction& i);    // cp.async.mbarrier.arrive

inline constexpr uint32_t kPredicateClass = 0;  // size class of a predicate's word

class Lowering {
 public:
  Lowering(Linker& linker, const ptx::Function& source, uint32_t module, CompiledFunction& target);
  bool run();

  // Errors. These functions return false, so that a lowering function can return their result. The first error is
  // reported.
  bool invalid(std::string message);
  bool unsupported(std::string message);
  bool failed() const { return failed_; }

  // Operands as sources. A register whose width differs from the type's is an error, except in the wide_ forms, for the
  // instructions that allow a wider one (ld, st, cvt).
  Ref source(const ptx::Operand& operand, ptx::Type type);
  // Accepts a register at least as wide as the type, and sets `bytes` to its width.
  Ref wide_source(const ptx::Operand& operand, ptx::Type type, uint32_t& bytes);
  Ref predicate_source(const ptx::Operand& operand);  // a negated predicate is copied to a temporary
  Ref constant(uint64_t bits, uint32_t bytes);
  // Operands as results. A sink becomes a temporary.
  Ref destination(const ptx::Operand& operand, ptx::Type type);
  Ref wide_destination(const ptx::Operand& operand, ptx::Type type, uint32_t& bytes);
  Ref predicate_destination(const ptx::Operand& operand);
  Ref temporary(uint32_t bytes);
  uint32_t register_bytes(const ptx::Operand& operand) const;
  bool is_predicate(const ptx::Operand& operand) const;
  const ptx::Function& source_function() const { return source_; }
  Linker& linker() { return linker_; }
  CompiledFunction& target() { return target_; }

  // Appends an op for the current instruction, under its guard.
  Op& emit(Handler handler, std::initializer_list<Ref> results, std::initializer_list<Ref> sources);
  Op& emit(Handler handler, std::span<const Ref> results, std::span<const Ref> sources);
  // Declares that the op writes results before it has read all sources, so that they must not share a slot.
  void keep_apart() { apart_.back() = true; }

  // Addresses: the address operand as a register of 4 or 8 bytes, plus a constant.
  struct Address {
    Ref base;
    uint32_t base_bytes = 8;
    int64_t offset = 0;
    bool parameter = false;  // [name] of a .param variable
    uint32_t variable = 0;
  };
  bool address(const ptx::Operand& operand, Address& result);
  // The value of a name or a variable, in 8 bytes (or 4).
  Ref address_of(const ptx::Operand& operand, uint32_t bytes);

  // .param variables of this function. A scalar is in a virtual register, the others are in a fixed part of the frame.
  struct ParameterPlace {
    bool entry = false;   // a kernel's parameter, at `offset` in the launch's parameters
    bool scalar = false;  // `ref` is a virtual register
    Ref ref;
    uint32_t offset = 0;
    uint32_t bytes = 0;
  };
  const ParameterPlace& parameter(uint32_t variable) const { return places_[variable]; }

  // Control flow.
  void branch_to(uint32_t instruction);  // target of the last op
  uint32_t add_table(std::vector<uint32_t> instructions);
  // Makes the last op a call with these arguments and results, or an instruction with more operands than an op has room
  // for.
  void call_through(CallSite site);
  int64_t function_named(std::string_view name);  // -1: none
  const ptx::Function* declaration(std::string_view name);
  uint32_t symbol(std::string_view name);  // reports an error for an unknown name

 private:
  friend class SlotAssignment;
  struct VirtualRegister {
    uint8_t bytes = 0;    // 0: predicate
    bool pinned = false;  // results: alive until the end
    bool formal = false;  // alive from the beginning
  };

  void place_parameters();
  void find_scalar_parameters(std::vector<uint8_t>& scalar) const;
  bool lower(const ptx::Instruction& instruction);
  bool fail(bool unsupported, std::string message);
  Ref real_constant(const ptx::Operand& operand, ptx::Type type);
  Ref new_register(uint32_t bytes);
  Ref register_ref(uint32_t index) const { return {Area::virtual_register, index}; }
  void fix_targets();

  Linker& linker_;
  const ptx::Function& source_;
  uint32_t module_;
  CompiledFunction& target_;
  const ptx::Instruction* current_ = nullptr;
  std::vector<VirtualRegister> registers_;
  std::vector<ParameterPlace> places_;
  std::vector<uint32_t> op_of_instruction_;
  std::vector<uint8_t> apart_;  // per op
  enum : uint8_t { kNoTarget, kBranchTarget, kCallSite };
  std::vector<uint8_t> branches_;  // for each op: the kind of `target`
  uint32_t fixed_bytes_ = 0;       // bytes of the frame for array parameters
  std::vector<uint32_t> local_offsets_;
  bool failed_ = false;
};

}  // namespace gpuwire::software_device
