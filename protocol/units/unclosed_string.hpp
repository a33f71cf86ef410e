// Finds a string without an end in a configuration file (TOML). Parsers report it at a later place, with a message
// about the character that they found there.
#pragma once

#include <cstddef>
#include <string_view>

namespace gpuwire::units {

// Returns the line, counted from 1, in which a string without an end begins; 0: there is none.
size_t line_of_unclosed_string(std::string_view toml);

}  // namespace gpuwire::units
