// Checks whether a server could listen at its configured addresses, without serving there.
#pragma once

#include <string>

namespace gpuwire::server {

// Returns the fault, in a line. Empty: the address is free, or belongs to a running gpuwire server, which will release
// it at a restart. Waits at most kWhoHasItMs for the present owner's answer. `text`: as in `listen`.
std::string wrong_with_address(const std::string& text);
// Does the same for the metrics' address: `metrics_listen`.
std::string wrong_with_metrics_address(const std::string& text);
// Does the same for the web page's address: `web_listen`.
std::string wrong_with_web_address(const std::string& text);
// Checks the path of a future Unix socket, but not a present listener.
std::string wrong_with_socket(const std::string& path);

inline constexpr unsigned kWhoHasItMs = 10'000;

}  // namespace gpuwire::server
