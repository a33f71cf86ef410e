#include "protocol/units/duration.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gpuwire::units {
namespace {

struct TimeUnit {
  std::string_view name;
  double milliseconds;
};

constexpr TimeUnit kTimeUnits[] = {{"ms", 1}, {"s", 1e3}, {"min", 60e3}, {"h", 3600e3}, {"d", 86400e3}};
// Above this, a double does not represent every integer.
constexpr double kExactMillisecondsMax = 9007199254740992.0;

}  // namespace

tl::expected<uint64_t, std::string> parse_duration_ms(std::string_view text) {
  auto wrong = [&](std::string_view why) {
    return tl::unexpected(fmt::format("\"{}\" is not a duration: {}; write for example \"30s\"", text, why));
  };
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return wrong("it does not begin with a number");
  std::string_view name = text.substr(size_t(end - text.data()));
  name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
  auto unit =
      std::find_if(std::begin(kTimeUnits), std::end(kTimeUnits), [&](const TimeUnit& one) { return one.name == name; });
  if (unit == std::end(kTimeUnits)) {
    std::vector<std::string_view> names;
    for (const TimeUnit& one : kTimeUnits) names.push_back(one.name);
    return wrong(fmt::format(fmt::runtime(name.empty() ? "a unit is missing, one of {}" : "the unit must be one of {}"),
                             fmt::join(names, ", ")));
  }
  double value = std::round(number * unit->milliseconds);
  if (value > kExactMillisecondsMax) return wrong("it is too large");
  return uint64_t(value);
}

std::string seconds_text(uint64_t ms) {
  std::string text = std::to_string(ms / 1000);
  if (ms % 1000 != 0) {
    text += fmt::format(".{:03}", ms % 1000);
    text.erase(text.find_last_not_of('0') + 1);
  }
  return text + " s";
}

}  // namespace gpuwire::units
