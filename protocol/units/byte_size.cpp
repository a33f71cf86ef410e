#include "protocol/units/byte_size.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

namespace gpuwire::units {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr double kKilo = 1000, kKibi = 1024;
constexpr Unit kUnits[] = {{"B", 1},
                           {"KB", kKilo},
                           {"MB", kKilo* kKilo},
                           {"GB", kKilo* kKilo* kKilo},
                           {"TB", kKilo* kKilo* kKilo* kKilo},
                           {"KiB", kKibi},
                           {"MiB", kKibi* kKibi},
                           {"GiB", kKibi* kKibi* kKibi},
                           {"TiB", kKibi* kKibi* kKibi* kKibi}};
// Above this, a double does not represent every integer.
constexpr double kExactMax = 9007199254740992.0;

}  // namespace

tl::expected<uint64_t, std::string> parse_byte_size(std::string_view text) {
  auto wrong = [&](std::string_view why) {
    return tl::unexpected(fmt::format("\"{}\" is not a size: {}; write for example \"20GiB\"", text, why));
  };
  constexpr std::string_view kNames = "one of B, KB, MB, GB, TB (by 1000), KiB, MiB, GiB, TiB (by 1024)";
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return wrong("it does not begin with a number");
  std::string_view name = text.substr(size_t(end - text.data()));
  name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
  if (name.empty() && number == 0) return 0;
  if (name.empty()) return wrong(fmt::format("a unit is missing, {}", kNames));
  const Unit* unit =
      std::find_if(std::begin(kUnits), std::end(kUnits), [&](const Unit& one) { return one.name == name; });
  if (unit == std::end(kUnits)) return wrong(fmt::format("the unit must be {}", kNames));
  double bytes = std::round(number * unit->bytes);
  if (bytes > kExactMax) return wrong("it is too large");
  return uint64_t(bytes);
}

}  // namespace gpuwire::units
