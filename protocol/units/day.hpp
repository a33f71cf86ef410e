// Parses days as people write them.
#pragma once

#include <string_view>

namespace gpuwire::units {

// Returns whether the text has the form 2026-11-28. The calendar is not checked.
bool is_day(std::string_view text);

}  // namespace gpuwire::units
