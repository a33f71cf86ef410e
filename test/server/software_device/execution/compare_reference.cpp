// Comparison and selection: PTX ISA 9.0, section 9.7.6.
#include "test/server/software_device/execution/arithmetic_reference.hpp"

namespace gpuwire::software_device::test {
namespace {

enum class Order { less, equal, greater, unordered };

Order order_of(const Form& form, std::string_view type, uint64_t a, uint64_t b) {
  const auto format = format_of(type);
  if (!format) {
    const Wide x = integer_of(type, a), y = integer_of(type, b);
    return x < y ? Order::less : x > y ? Order::greater : Order::equal;
  }
  const FloatFormat& f = *format;
  a = masked(a, static_cast<uint32_t>(f.bits));
  b = masked(b, static_cast<uint32_t>(f.bits));
  if (form.has("ftz")) a = f.flushed(a), b = f.flushed(b);
  if (f.is_nan(a) || f.is_nan(b)) return Order::unordered;
  const auto rank = [&](uint64_t v) {
    return (v & f.sign()) != 0 ? -static_cast<Wide>(v & ~f.sign()) : static_cast<Wide>(v);
  };
  return rank(a) < rank(b) ? Order::less : rank(a) > rank(b) ? Order::greater : Order::equal;
}

bool holds(const std::string& comparison, Order order) {
  const bool unordered = order == Order::unordered, less = order == Order::less, equal = order == Order::equal,
             greater = order == Order::greater;
  if (comparison == "num") return !unordered;
  if (comparison == "nan") return unordered;
  std::string plain = comparison;
  if (plain.size() == 3) {  // equ, neu...: true when unordered
    if (unordered) return true;
    plain.pop_back();
  }
  if (unordered) return false;
  if (plain == "eq") return equal;
  if (plain == "ne") return !equal;
  if (plain == "lt" || plain == "lo") return less;
  if (plain == "le" || plain == "ls") return !greater;
  if (plain == "gt" || plain == "hi") return greater;
  return !less;  // ge, hs
}

std::string comparison_of(const Form& form) {
  for (const std::string& word : form.modifiers) {
    if (word != "ftz" && word != "and" && word != "or" && word != "xor") return word;
  }
  return {};
}

bool combined(const Form& form, bool value, uint64_t with) {
  const bool c = (with & 1) != 0;
  return form.has("and") ? value && c : form.has("or") ? value || c : form.has("xor") ? value != c : value;
}

std::string scalar_of(const std::string& type) { return is_packed(type) ? type.substr(0, type.size() - 2) : type; }

// Returns the value that `set` writes for true.
uint64_t yes_of(std::string_view type) {
  const auto format = format_of(type);
  return format ? format->one() : masked(~uint64_t{0}, bits_of(type));
}

}  // namespace

Reference compare_reference(const Form& form) {
  const std::string& opcode = form.opcode;
  if (opcode == "selp") {
    const uint32_t bits = bits_of(form.types[0]);
    return [=](const uint64_t* s) { return Expected{.bits = masked((s[2] & 1) != 0 ? s[0] : s[1], bits)}; };
  }
  if (opcode == "slct") {
    const uint32_t bits = bits_of(form.types[0]);
    return [=](const uint64_t* s) {
      const Order order = order_of(form, form.types[1], s[2], 0);
      return Expected{.bits = masked(order == Order::greater || order == Order::equal ? s[0] : s[1], bits)};
    };
  }
  if (opcode != "set" && opcode != "setp") return nullptr;
  const std::string from = form.types.back(), comparison = comparison_of(form);
  const auto test = [=](uint64_t a, uint64_t b) { return holds(comparison, order_of(form, scalar_of(from), a, b)); };
  if (opcode == "setp") {
    // Packed halves have a predicate each; others the comparison and its opposite.
    return [=](const uint64_t* s) {
      const bool low = test(s[0], s[1]), other = is_packed(from) ? test(s[0] >> 16, s[1] >> 16) : !low;
      return Expected{.bits = combined(form, low, s[2]), .second = combined(form, other, s[2])};
    };
  }
  const std::string to = form.types[0];
  const bool halves = is_packed(from);
  const uint64_t yes = halves && !is_packed(to) ? 0xffff : yes_of(scalar_of(to));
  return [=](const uint64_t* s) {
    Expected e{.bits = combined(form, test(s[0], s[1]), s[2]) ? yes : 0};
    if (halves && combined(form, test(s[0] >> 16, s[1] >> 16), s[2])) e.bits |= yes << 16;
    return e;
  };
}

}  // namespace gpuwire::software_device::test
