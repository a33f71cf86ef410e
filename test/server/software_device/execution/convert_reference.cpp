// cvt: PTX ISA 9.0, section 9.7.9.21.
#include <algorithm>

#include "test/server/software_device/execution/arithmetic_reference.hpp"

namespace gpuwire::software_device::test {
namespace {

Wide lowest_of(std::string_view type) { return type[0] == 's' ? -(Wide{1} << (bits_of(type) - 1)) : 0; }
Wide highest_of(std::string_view type) {
  return type[0] == 's' ? (Wide{1} << (bits_of(type) - 1)) - 1 : (Wide{1} << bits_of(type)) - 1;
}

// An integer result fills a register of 16 bits also when its type has 8.
uint64_t in_register(std::string_view type, Wide v) {
  return masked(static_cast<UnsignedWide>(integer_of(type, static_cast<uint64_t>(v))), 8 * register_bytes(type));
}

std::optional<Round> integral_rounding(const Form& form) {
  if (form.has("rni")) return Round::nearest_even;
  if (form.has("rzi")) return Round::toward_zero;
  if (form.has("rmi")) return Round::down;
  if (form.has("rpi")) return Round::up;
  return std::nullopt;
}

Exact to_integral(const Exact& v, const std::optional<Round>& round) {
  return round && v.exponent < 0 ? rounded_at(v, 0, *round) : v;
}

Expected float_to_integer(const Form& form, const FloatFormat& f, std::string_view to, uint64_t v) {
  if (form.has("ftz") && f.bits == 32) v = f.flushed(v);
  if (f.is_nan(v)) {
    const bool zero = f.bits != 64 && bits_of(to) != 64;
    return {.bits = zero ? 0 : in_register(to, Wide{1} << (bits_of(to) - 1))};
  }
  const bool negative = (v & f.sign()) != 0;
  Wide value = negative ? lowest_of(to) : highest_of(to);
  if (!f.is_infinite(v)) {
    const Exact whole = to_integral(exact(f, v), integral_rounding(form));
    if (whole.exponent + width_of(whole.magnitude) <= 80) {
      const Wide magnitude = static_cast<Wide>(whole.magnitude << std::max(whole.exponent, 0));
      value = std::clamp(negative ? -magnitude : magnitude, lowest_of(to), highest_of(to));
    }
  }
  return {.bits = in_register(to, value)};
}

// Converts a value other than NaN to a float; `infinite`: the value is an infinity.
Expected to_float(const Form& form, const FloatFormat& f, const Exact& v, bool infinite) {
  uint64_t bits = infinite ? f.infinity() | (v.negative ? f.sign() : 0) : encode(f, v, rounding_of(form));
  const bool negative = (bits & f.sign()) != 0;
  if (form.has("sat")) {
    // The value is clamped before it is rounded, and one and zero are in every format.
    bits = negative ? 0 : std::min(bits, f.one());
  }
  if (form.has("relu") && negative) bits = 0;
  if (form.has("ftz") && f.bits == 32) bits = f.flushed(bits);
  return {.bits = bits};
}

Expected float_to_float(const Form& form, const FloatFormat& from, const FloatFormat& to, uint64_t v) {
  v = masked(v, static_cast<uint32_t>(from.bits));
  if (form.has("ftz") && from.bits == 32) v = from.flushed(v);
  if (from.is_nan(v)) return {.bits = form.has("sat") ? 0 : to.nan(), .any_nan = to.bits >= 32 && !form.has("sat")};
  if (from.is_infinite(v)) return to_float(form, to, {(v & from.sign()) != 0, 0, 0, false}, true);
  return to_float(form, to, to_integral(exact(from, v), integral_rounding(form)), false);
}

Reference pack(const Form& form) {
  const std::string to = form.types[0];
  const uint32_t bits = bits_of(to);
  const bool merges = form.types.size() == 3;
  return [=](const uint64_t* s) {
    const auto part = [&](uint64_t v) {
      return masked(static_cast<UnsignedWide>(std::clamp(integer_of("s32", v), lowest_of(to), highest_of(to))), bits);
    };
    return Expected{
        .bits =
            masked((merges ? UnsignedWide{s[2]} << 2 * bits : 0) | UnsignedWide{part(s[0])} << bits | part(s[1]), 32)};
  };
}

}  // namespace

Reference convert_reference(const Form& form) {
  if (form.opcode != "cvt") return nullptr;
  if (form.has("pack")) return pack(form);
  const std::string to = form.types[0], from = form.types[1];
  const auto to_format = format_of(to), from_format = format_of(from);
  if (is_packed(to)) {
    return [=](const uint64_t* s) {
      const Expected high = float_to_float(form, *from_format, *to_format, s[0]),
                     low = float_to_float(form, *from_format, *to_format, s[1]);
      return Expected{.bits = high.bits << 16 | low.bits};
    };
  }
  if (is_packed(from)) return nullptr;
  if (to_format && from_format)
    return [=](const uint64_t* s) { return float_to_float(form, *from_format, *to_format, s[0]); };
  if (to_format)
    return [=](const uint64_t* s) { return to_float(form, *to_format, exact_integer(integer_of(from, s[0])), false); };
  if (from_format)
    return [=](const uint64_t* s) { return float_to_integer(form, *from_format, to, masked(s[0], bits_of(from))); };
  return [=](const uint64_t* s) {
    const Wide v = integer_of(from, s[0]);
    return Expected{.bits = in_register(to, form.has("sat") ? std::clamp(v, lowest_of(to), highest_of(to)) : v)};
  };
}

}  // namespace gpuwire::software_device::test
