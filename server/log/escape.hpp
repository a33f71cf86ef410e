// Text from clients, made safe for a terminal and a line of a log.
#pragma once

#include <string>
#include <string_view>

namespace gpuwire::server {

// Control characters (C0, DEL, C1) and bytes that are not UTF-8 become \xNN, everything else stays: nothing in the
// result moves a cursor or ends a line.
std::string escaped(std::string_view text);

}  // namespace gpuwire::server
