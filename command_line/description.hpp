// A command's description of itself for programs: what its man page and its completions are made from.
#pragma once

#include <string>

namespace gpuwire {

class Command;

// One JSON object: name, description, footer, options, positionals and commands (objects of the same kind). An option
// has names, text, and where they apply: value (the placeholder), values (all that it may be), default.
std::string describe(const Command& command);

}  // namespace gpuwire
