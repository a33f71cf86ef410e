// As much of HTTP as a Prometheus server speaks when it scrapes.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace gpuwire::server {

// The whole answer to a request's head, which anybody may have sent: /metrics by GET or HEAD, a short text at /, else
// an error. The connection closes after it (HTTP/1.0). `metrics` is called when they are requested.
std::string http_answer(std::string_view head, const std::function<std::string()>& metrics);
std::string http_error(int status, const char* reason);

}  // namespace gpuwire::server
