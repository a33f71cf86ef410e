// Whether a server can listen where its configuration says, found without serving there.
#pragma once

#include <string>

namespace gpuwire::server {

// Empty: it can, or a gpuwire server that runs has the address and will make room when it is started again. Else what
// is wrong, a line. Waits for the answer of whoever has it for kWhoHasItMs at most, and is one refused connection in
// that server's log. `text`: as in `listen`.
std::string wrong_with_address(const std::string& text);
// The same for figures, over HTTP: `metrics_listen`.
std::string wrong_with_metrics_address(const std::string& text);
// A Unix socket that is to be made. Who listens there now is not looked at.
std::string wrong_with_socket(const std::string& path);

inline constexpr unsigned kWhoHasItMs = 10'000;

}  // namespace gpuwire::server
