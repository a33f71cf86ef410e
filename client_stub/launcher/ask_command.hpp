// `gpuwire queue`, and `gpuwire top` and `gpuwire usage` of a remote server: the view of a user's own tenant.
#pragma once

#include <string_view>

namespace gpuwire::launcher {

// As a main(); `view`: queue, top or usage.
int ask_command(std::string_view view, int argc, char** argv);

}  // namespace gpuwire::launcher
