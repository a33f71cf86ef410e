#include "protocol/units/day.hpp"

#include <cstddef>

namespace gpuwire::units {

bool is_day(std::string_view text) {
  constexpr std::string_view kPattern = "dddd-dd-dd";
  if (text.size() != kPattern.size()) return false;
  for (size_t i = 0; i < kPattern.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (kPattern[i] == 'd' ? !digit : text[i] != kPattern[i]) return false;
  }
  return true;
}

}  // namespace gpuwire::units
