// Text from clients, made safe for a terminal and a line of a log.
#pragma once

#include <string>
#include <string_view>

namespace gpuwire::server {

// Characters that are not shown as they are written (wire::kUnshown: controls, formats, directions, separators) and
// bytes that are not UTF-8 become \xNN, everything else stays: nothing in the result moves a cursor, ends a line or
// turns its direction.
std::string escaped(std::string_view text);

}  // namespace gpuwire::server
