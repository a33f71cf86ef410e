// Makes text of a peer safe for the user's terminal.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "protocol/wire/limits.hpp"
#include "protocol/wire/terminal_text.hpp"

namespace gpuwire::client {

inline constexpr size_t kPrintableBytesMax = wire::kRefusalBytesMax;

// Returns one line without effects on a terminal.
inline std::string printable(std::string_view text) {
  std::string line(text.substr(0, std::min(text.size(), kPrintableBytesMax)));
  wire::blank_unshown(line);
  return line;
}

}  // namespace gpuwire::client
