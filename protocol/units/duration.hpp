// Reads and writes durations as people do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

namespace gpuwire::units {

// Converts "30s", "500ms", "2h", "1d" or "5min" to milliseconds. The error describes the mistake and names the units.
tl::expected<uint64_t, std::string> parse_duration_ms(std::string_view text);

// Returns seconds without needless digits: "20 s", "1.5 s", "0.5 s", "0.001 s".
std::string seconds_text(uint64_t ms);

}  // namespace gpuwire::units
