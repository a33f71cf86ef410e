// Whether a server can listen where its configuration says, found without serving there.
#pragma once

#include <string>

namespace gpuwire::server {

// Empty: the address is free, or a running gpuwire server has it and will give it up at a restart. Otherwise the fault,
// in a line. Waits for the present owner's answer for kWhoHasItMs at most. `text`: as in `listen`.
std::string wrong_with_address(const std::string& text);
// The same for figures, over HTTP: `metrics_listen`.
std::string wrong_with_metrics_address(const std::string& text);
// The same for the web page: `web_listen`.
std::string wrong_with_web_address(const std::string& text);
// A Unix socket that is to be made. A present listener is not checked.
std::string wrong_with_socket(const std::string& path);

inline constexpr unsigned kWhoHasItMs = 10'000;

}  // namespace gpuwire::server
