// Days as people write them.
#pragma once

#include <string_view>

namespace gpuwire::units {

// Whether the text is a day as 2026-11-28 is written; no calendar is asked.
bool is_day(std::string_view text);

}  // namespace gpuwire::units
