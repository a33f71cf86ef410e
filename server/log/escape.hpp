// Makes text from clients safe for a terminal and a line of a log.
#pragma once

#include <string>
#include <string_view>

namespace gpuwire::server {

// Characters that are not shown as they are written (wire::kUnshown: controls, formats, directions, separators) and
// bytes that are not UTF-8 become \xNN; all other characters stay. The result contains nothing that moves a cursor,
// ends a line or changes its direction.
std::string escaped(std::string_view text);

}  // namespace gpuwire::server
