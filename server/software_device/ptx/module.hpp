// The content of a PTX text after parsing. Names inside functions are resolved; names of module scope are not yet.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "server/software_device/ptx/modifiers.hpp"
#include "server/software_device/ptx/types.hpp"

namespace gpuwire::software_device::ptx {

struct Operand {
  enum class Kind : uint8_t {
    none,
    reg,       // index: a register of the function
    special,   // name: %tid and similar; index: 0..3 for .x .y .z .w
    integer,   // value
    real,      // value: f64 bits; single: f32 bits when single_exact
    variable,  // index: a variable of the function; addend
    name,      // not found in the function (yet): a module variable or function; addend
    label,     // index: an instruction
    table,     // index: a .branchtargets, .calltargets or .callprototype of the function
    address,   // [elements[0] + addend]
    vector,    // {elements...}
    list,      // (elements...)
    pair,      // elements[0] | elements[1]
    sink,      // _
  };
  Kind kind = Kind::none;
  bool negated = false;  // !p
  bool single_exact = false;
  uint32_t index = 0;
  uint32_t scope = 0;  // the scope in which a name was written, for labels
  uint64_t value = 0;
  uint32_t single = 0;
  int64_t addend = 0;
  std::string_view name;
  std::vector<Operand> elements;
};

struct Instruction {
  uint32_t line = 0;
  std::string_view opcode;
  // A word after the name that is neither type nor modifier; its meaning depends on the name.
  std::string_view unknown_word;
  ModifierSet modifiers;
  std::vector<Modifier> order;  // in the order of the text, for the few instructions in which one word has two meanings
  std::vector<Type> types;
  std::vector<Operand> operands;
  bool guarded = false;
  bool guard_negated = false;
  uint32_t guard = 0;  // register

  bool has(Modifier m) const { return modifiers.has(m); }
  Type type(size_t i = 0) const { return i < types.size() ? types[i] : Type::none; }
};

struct PointerInitialiser {
  uint64_t offset_bytes = 0;
  std::string_view target;
  int64_t addend = 0;
};

struct Variable {
  std::string_view name;
  Space space = Space::global;
  Type element = Type::b8;
  uint64_t size_bytes = 0;
  uint32_t alignment_bytes = 1;
  uint32_t line = 0;
  bool external = false, visible = false, weak = false, common = false, managed = false;
  bool unsized = false;  // extern .shared x[]: the dynamic shared memory
  std::vector<uint8_t> initial;
  std::vector<PointerInitialiser> pointers;
};

// A formal parameter or result: a variable of space param, or a register.
struct Formal {
  bool in_register = false;
  uint32_t index = 0;
};

struct LabelTable {
  enum class Kind : uint8_t { branch_targets, call_targets, call_prototype } kind = Kind::branch_targets;
  std::vector<Operand> targets;
};

struct Function {
  std::string_view name;
  uint32_t line = 0;
  bool entry = false, defined = false, external = false, visible = false, weak = false;
  uint32_t max_threads_per_block = 1024;
  uint32_t cluster[3] = {0, 0, 0};  // .reqnctapercluster; zero: not specified
  std::vector<Type> registers;
  std::vector<Variable> variables;
  std::vector<Formal> parameters, results;
  std::vector<LabelTable> tables;
  std::vector<Instruction> instructions;
};

struct Alias {
  std::string_view name, target;
};

// All texts are borrowed from the source.
struct Module {
  uint32_t version = 0;    // 90 for ".version 9.0"
  uint32_t target_sm = 0;  // 75 for ".target sm_75"
  std::vector<Variable> variables;
  std::vector<Function> functions;
  std::vector<Alias> aliases;
};

}  // namespace gpuwire::software_device::ptx
