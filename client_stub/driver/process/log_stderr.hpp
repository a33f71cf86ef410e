// Lines for the program's user.
#pragma once

#include <string_view>

namespace gpuwire::client {

// Writes "gpuwire: <line>" to standard error in one piece. A process writes at most kLinesMax lines, so that a program
// that continues after a failure does not flood its output.
inline constexpr int kLinesMax = 64;
void log_stderr(std::string_view line) noexcept;

}  // namespace gpuwire::client
