// A string of a configuration file (TOML) that nobody has closed: parsers report it somewhere behind its beginning, and
// in words about the character that they have met there.
#pragma once

#include <cstddef>
#include <string_view>

namespace gpuwire::units {

// The line, counted from 1, in which a string begins that has no end; 0: there is none.
size_t line_of_unclosed_string(std::string_view toml);

}  // namespace gpuwire::units
