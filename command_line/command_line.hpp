// The common parts of the command lines of gpuwire's commands.
#pragma once

#include <optional>

#include "command_line/command.hpp"

namespace gpuwire {

// Wrong use of a command, as the exit code of every one of them.
inline constexpr int kUsageError = 2;

// Parses, after adding --version and --describe. No value: go on. Else the code to exit with: 0 after --help, --version
// and --describe, which have written to stdout; kUsageError after a mistake, which has been told on stderr.
std::optional<int> parse_command_line(CommandLine& command, int argc, const char* const* argv);

}  // namespace gpuwire
