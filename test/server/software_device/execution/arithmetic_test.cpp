// All accepted arithmetic of the engine against independent references: about 2 * 10^6 values in all, and 10^7 in the
// long form.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "test/server/software_device/execution/arithmetic_reference.hpp"
#include "test/server/software_device/execution/engine_fixture.hpp"
#include "test/support/long_form.hpp"

namespace gpuwire::software_device::test {
namespace {

constexpr size_t kValuesOfOpcode = 25'000;  // in all of its forms, and at least a block for each
constexpr size_t kValuesOfOpcodeLong = 180'000;
constexpr uint32_t kThreads = 64;
constexpr uint64_t kSeed = 20;

// Instructions that are no arithmetic, or need more than registers: other tests of this folder cover them.
const std::set<std::string> kTestedElsewhere = {
    "mov",        "cvta",          "isspacep", "ld",        "ldu",     "st",         "prefetch",
    "prefetchu",  "applypriority", "discard",  "cp",        "atom",    "red",        "bra",
    "brx",        "call",          "ret",      "exit",      "bar",     "barrier",    "membar",
    "fence",      "trap",          "brkpt",    "nanosleep", "pmevent", "setmaxnreg", "griddepcontrol",
    "getctarank", "mapa",          "vote",     "shfl",      "match",   "redux",      "activemask",
    "elect",      "tex",           "tld4",     "suld",      "sust",    "mbarrier",
};

class Operands {
 public:
  uint64_t value(const FormOperand& operand) {
    if (operand.type == "pred") return random_() & 1;
    if (operand.amount) return amount();
    if (is_packed(operand.type)) return scalar(operand.type) << 16 | scalar(operand.type);
    return scalar(operand.type);
  }
  uint64_t bit() { return random_() & 1; }

 private:
  // Amounts of shifts, positions, lengths: values around the widths, and values of which only the lowest byte or bits
  // count.
  uint64_t amount() {
    static constexpr uint64_t kEdges[] = {0,  1,   15,  16,  17,  31,  32,      33,         63,         64,
                                          65, 127, 128, 255, 256, 257, 0x10008, 0x7fffffff, 0x80000000, 0xffffffff};
    return random_() % 4 == 0 ? kEdges[random_() % std::size(kEdges)] : random_() % 70;
  }

  uint64_t scalar(std::string_view type) {
    const auto format = format_of(type);
    return format ? number(*format) : integer(bits_of(type));
  }

  uint64_t integer(uint32_t bits) {
    const uint64_t top = uint64_t{1} << (bits - 1);
    uint64_t v = random_();
    switch (random_() % 4) {
      case 0: {
        const uint64_t edges[] = {0,
                                  1,
                                  2,
                                  3,
                                  ~uint64_t{0},
                                  ~uint64_t{1},
                                  top,
                                  top + 1,
                                  top - 1,
                                  top - 2,
                                  uint64_t{1} << (bits / 2),
                                  (uint64_t{1} << (bits / 2)) - 1};
        v = edges[random_() % std::size(edges)];
        break;
      }
      case 1: v >>= random_() % 64; break;
      case 2: v = ~(v >> random_() % 64); break;
      default: break;
    }
    return masked(v, bits < 16 ? 16 : bits);  // bits above a byte do not count
  }

  uint64_t number(const FloatFormat& f) {
    const uint64_t sign = random_() % 2 != 0 ? f.sign() : 0;
    const uint64_t v = random_() & (f.sign() - 1);
    switch (random_() % 4) {
      case 0: {
        const uint64_t edges[] = {0,
                                  1,
                                  f.fraction(),
                                  f.fraction() + 1,
                                  f.fraction() + 2,
                                  f.one(),
                                  f.one() - 1,
                                  f.one() + 1,
                                  f.infinity() - 1,
                                  f.infinity(),
                                  f.infinity() + 1,
                                  f.nan(),
                                  f.one() + f.fraction() + 1,
                                  f.one() - f.fraction() - 1};
        return sign | edges[random_() % std::size(edges)];
      }
      case 1: return sign | v;
      case 2: {
        // Magnitudes near one, so that sums cancel and integers occur.
        const auto span = static_cast<uint64_t>(std::min(f.bias() - 1, 70));
        const uint64_t biased = static_cast<uint64_t>(f.bias()) - span / 4 + random_() % span;
        return sign | std::min(biased << f.fraction_bits | (v & f.fraction()), f.infinity() - 1);
      }
      default: {
        // Few significant bits: ties, and halves of integers.
        const uint64_t biased = static_cast<uint64_t>(f.bias()) - 2 + random_() % 14;
        return sign | biased << f.fraction_bits | (v & f.fraction() & ~(f.fraction() >> (1 + random_() % 8)));
      }
    }
  }

  std::mt19937_64 random_{kSeed};
};

long double number_of(const FloatFormat& f, uint64_t v) {
  if (f.is_nan(v)) return std::numeric_limits<long double>::quiet_NaN();
  if (f.is_infinite(v)) return (v & f.sign()) != 0 ? -INFINITY : INFINITY;
  return approximately(f, v);
}

bool is_near(long double got, long double wanted, long double allowed) {
  if (std::isnan(wanted) || std::isnan(got)) return std::isnan(wanted) && std::isnan(got);
  return got == wanted || std::fabs(got - wanted) <= allowed;
}

bool is_right(const Form& form, const Expected& expected, uint64_t got, uint64_t second) {
  if (expected.open) return true;
  const auto format = format_of(shape_of(form).results[0].type);
  if (expected.close) {
    if (!is_packed(form.types[0])) {
      // An overflow at the format's end counts as its largest number.
      const long double largest = number_of(*format, format->infinity() - 1);
      const bool overflow = format->is_infinite(got) && std::fabs(expected.value) + expected.allowed > largest &&
                            std::signbit(number_of(*format, got)) == std::signbit(expected.value);
      return overflow || is_near(number_of(*format, got), expected.value, expected.allowed);
    }
    const auto half_right = [&](uint64_t half, long double value, long double allowed) {
      return (format->is_infinite(half) && value > number_of(*format, format->infinity() - 1)) ||
             is_near(number_of(*format, half), value, allowed);
    };
    return half_right(got & 0xffff, expected.value, expected.allowed) &&
           half_right(got >> 16, expected.high_value, expected.high_allowed);
  }
  if (expected.any_nan && format) return format->is_nan(got) && second == expected.second;
  return got == expected.bits && second == expected.second;
}

std::string described(const Form& form, const uint64_t* sources, const Expected& expected, uint64_t got,
                      uint64_t second) {
  char text[64];
  std::string out = form.text() + " of";
  for (size_t k = 0; k < words_of(form); ++k) {
    std::snprintf(text, sizeof text, " 0x%llx", static_cast<unsigned long long>(sources[k]));
    out += text;
  }
  std::snprintf(text, sizeof text, ": 0x%llx|%llu", static_cast<unsigned long long>(got),
                static_cast<unsigned long long>(second));
  out += text;
  if (expected.close) std::snprintf(text, sizeof text, ", not near %.9Lg", expected.value);
  else
    std::snprintf(text, sizeof text, ", not 0x%llx|%llu", static_cast<unsigned long long>(expected.bits),
                  static_cast<unsigned long long>(expected.second));
  return out + text;
}

TEST_CASE("every arithmetic instruction with every type gives what PTX says") {
  MESSAGE("seed " << kSeed);
  std::vector<std::string> unknown, others;
  const std::vector<Form> forms = accepted_forms(unknown, others);
  for (const std::string& name : unknown) FAIL_CHECK("no shape or modifier for instruction " << name);
  for (const std::string& name : others)
    CHECK_MESSAGE(kTestedElsewhere.contains(name), name << " is new: has it a test?");

  std::map<std::string, size_t> forms_of_opcode;
  for (const Form& form : forms) ++forms_of_opcode[form.opcode];
  Operands operands;
  TestDevice device(2);
  const size_t values_of_opcode = gpuwire::test::is_long_form() ? kValuesOfOpcodeLong : kValuesOfOpcode;
  const size_t values_max = values_of_opcode + kThreads;
  auto* const in = device.array<uint64_t>(values_max * 6);
  auto* const out = device.array<uint64_t>(values_max * 2);
  size_t total = 0;
  for (const Form& form : forms) {
    const size_t blocks = values_of_opcode / forms_of_opcode[form.opcode] / kThreads + 1, values = blocks * kThreads;
    total += values;
    const auto table = static_cast<uint32_t>(operands.value({"u32"}) & 0xff);
    Reference reference;
    for (auto found :
         {integer_reference(form, table), float_reference(form), convert_reference(form), compare_reference(form)}) {
      if (found) reference = std::move(found);
    }
    if (!reference) {
      FAIL_CHECK("no reference for " << form.text());
      continue;
    }
    const FormShape shape = shape_of(form);
    const size_t words = words_of(form);
    for (size_t i = 0; i < values; ++i) {
      for (size_t k = 0; k < words; ++k)
        in[i * words + k] = k < shape.sources.size() ? operands.value(shape.sources[k]) : operands.bit();
    }
    std::fill(out, out + 2 * values, 0);
    REQUIRE(device.load(kernel_of_form(form, table)) == "");
    REQUIRE(device.run("k", {static_cast<uint32_t>(blocks)}, {kThreads}, in, out).message == "");
    size_t wrong = 0;
    std::string first;
    for (size_t i = 0; i < values; ++i) {
      uint64_t sources[6] = {};
      std::copy(in + i * words, in + (i + 1) * words, sources);
      const Expected expected = reference(sources);
      if (is_right(form, expected, out[2 * i], out[2 * i + 1])) continue;
      if (wrong++ == 0) first = described(form, sources, expected, out[2 * i], out[2 * i + 1]);
    }
    CHECK_MESSAGE(wrong == 0, wrong << " of " << values << " wrong: " << first);
  }
  MESSAGE(forms.size() << " forms, " << total << " values");
  CHECK(total >= (gpuwire::test::is_long_form() ? 10'000'000 : 1'500'000));
}

}  // namespace
}  // namespace gpuwire::software_device::test
