#include "server/config/quantities.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gpuwire::server {
namespace {

struct Unit {
  std::string_view name;
  double size;
};

constexpr Unit kTimeUnits[] = {{"ms", 1}, {"s", 1e3}, {"min", 60e3}, {"h", 3600e3}, {"d", 86400e3}};
// Above this a double does not hold every whole number.
constexpr double kExactMax = 9007199254740992.0;

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
      std::find_if(std::begin(kTimeUnits), std::end(kTimeUnits), [&](const Unit& one) { return one.name == name; });
  if (unit == std::end(kTimeUnits)) {
    std::vector<std::string_view> names;
    for (const Unit& one : kTimeUnits) names.push_back(one.name);
    return wrong(fmt::format(fmt::runtime(name.empty() ? "a unit is missing, one of {}" : "the unit must be one of {}"),
                             fmt::join(names, ", ")));
  }
  double value = std::round(number * unit->size);
  if (value > kExactMax) return wrong("it is too large");
  return uint64_t(value);
}

std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& known) {
  std::string_view best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (std::string_view candidate : known) {
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t(0));
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j <= candidate.size(); ++j) {
        size_t changed = diagonal + (word[i - 1] != candidate[j - 1]);
        diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, changed}));
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace gpuwire::server
