// The forms of arithmetic instructions (name, modifiers, types) that the engine accepts, found by a trial of its whole
// table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::software_device::test {

struct Form {
  std::string opcode;
  std::vector<std::string> modifiers;
  std::vector<std::string> types;

  bool has(std::string_view word) const {
    return std::find(modifiers.begin(), modifiers.end(), word) != modifiers.end();
  }
  std::string text() const;  // "add.rn.ftz.f32"
};

// One operand: its type as PTX writes it ("pred" too), and whether values are small, as amounts of shifts and positions
// are.
struct FormOperand {
  std::string type;
  bool amount = false;
  bool selects_table = false;  // an immediate of 8 bits
};

// A form's operands. Results: one, or two predicates.
struct FormShape {
  std::vector<FormOperand> results, sources;
};

FormShape shape_of(const Form& form);

// Whether the form reads or writes CC.CF.
bool uses_carry(const Form& form);

uint32_t bits_of(std::string_view type);         // of its values
uint32_t register_bytes(std::string_view type);  // of the register that holds it; 0: a predicate

// A kernel that runs the form for each thread of the grid: word k of thread t's sources at in[t * words + k], results
// at out[2 * t]. A form that uses the carry has one source more, 0 or 1, which is put into CC.CF before, and CC.CF as
// it is afterwards as second result.
std::string kernel_of_form(const Form& form, uint32_t table);
size_t words_of(const Form& form);

// All accepted forms of the families of arithmetic instructions. Instructions of other families that the engine knows
// are in `others`.
std::vector<Form> accepted_forms(std::vector<std::string>& unknown, std::vector<std::string>& others);

}  // namespace gpuwire::software_device::test
