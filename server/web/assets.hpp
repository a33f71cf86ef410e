// The files of assets/, which the build compiles into the program.
#pragma once

#include <string_view>

namespace gpuwire::server::web {

extern const std::string_view kStyleSheet, kLiveScript, kIcon;

}  // namespace gpuwire::server::web
