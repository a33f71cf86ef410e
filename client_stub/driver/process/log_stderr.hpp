// Lines for the person at the terminal.
#pragma once

#include <string_view>

namespace gpuwire::client {

// Writes "gpuwire: <line>" to standard error in one piece. At most kLinesMax lines per process: a program that goes on
// after a failure must not drown in them.
inline constexpr int kLinesMax = 64;
void log_stderr(std::string_view line) noexcept;

}  // namespace gpuwire::client
