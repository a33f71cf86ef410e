// A list of servers, of which a program uses one: "gpu1:9750,gpu2:9750".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire::client {

inline constexpr size_t kServersMax = 32;

// Returns the servers' names as written, at least one; parse_server_address() accepts each. The error names the wrong
// entry and the reason.
tl::expected<std::vector<std::string>, std::string> parse_server_list(std::string_view text);

}  // namespace gpuwire::client
