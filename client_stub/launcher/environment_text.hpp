// Variables as shell commands that set them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace gpuwire::launcher {

using Environment = std::map<std::string, std::string>;

enum class ShellKind : uint8_t { posix, fish, csh };

// This process's environment.
Environment current_environment();
// The variables of `after` that `before` lacks or has with another value.
Environment changed(const Environment& before, const Environment& after);
// One command for each variable, one per line, quoted so that the shell takes every byte literally.
std::string commands_of(const Environment& environment, ShellKind shell);

}  // namespace gpuwire::launcher
