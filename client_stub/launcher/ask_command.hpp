// `gpuwire queue`, and `gpuwire top` and `gpuwire usage` of a server elsewhere: what a user's own tenant has there.
#pragma once

#include <string_view>

namespace gpuwire::launcher {

// As a main(); `view`: queue, top or usage.
int ask_command(std::string_view view, int argc, char** argv);

}  // namespace gpuwire::launcher
