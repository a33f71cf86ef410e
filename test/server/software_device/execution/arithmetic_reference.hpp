// The reference result of each form of an instruction, computed from the text of the PTX ISA alone: with integers of
// 128 bits (integers, and floating point by way of exact_float.hpp) or in long double where PTX gives an error bound.
// It shares no code with the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include "test/server/software_device/execution/arithmetic_forms.hpp"
#include "test/server/software_device/execution/exact_float.hpp"

namespace gpuwire::software_device::test {

struct Expected {
  uint64_t bits = 0;
  uint64_t second = 0;   // of a second result: a predicate or the carry
  bool any_nan = false;  // PTX leaves the NaN's bits open
  bool open = false;     // PTX does not define these operands
  bool close = false;    // within `allowed` of `value`, in the result's format
  long double value = 0, allowed = 0;
  long double high_value = 0, high_allowed = 0;  // of a packed result's upper half; the lower one's are those above
};

using Reference = std::function<Expected(const uint64_t* sources)>;

// Return nullptr if there is no reference for this form.
Reference integer_reference(const Form& form, uint32_t table);
Reference float_reference(const Form& form);
Reference convert_reference(const Form& form);
Reference compare_reference(const Form& form);

// Returns the format, of packed types that of the scalar; null for other than floating-point types.
std::optional<FloatFormat> format_of(std::string_view type);
bool is_packed(std::string_view type);
Round rounding_of(const Form& form);

inline uint64_t masked(UnsignedWide v, uint32_t bits) {
  return bits >= 64 ? static_cast<uint64_t>(v) : static_cast<uint64_t>(v) & ((uint64_t{1} << bits) - 1);
}

// Returns the register's value as an integer of `type`.
inline Wide integer_of(std::string_view type, uint64_t v) {
  const uint32_t bits = bits_of(type);
  const uint64_t low = masked(v, bits);
  if (type[0] != 's') return static_cast<Wide>(low);
  return static_cast<Wide>(low) - (low >> (bits - 1) != 0 ? Wide{1} << bits : 0);
}

}  // namespace gpuwire::software_device::test
