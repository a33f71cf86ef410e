// The files of assets/, as the build has put them into the program.
#pragma once

#include <string_view>

namespace gpuwire::server::web {

extern const std::string_view kStyleSheet, kLiveScript, kIcon;

}  // namespace gpuwire::server::web
