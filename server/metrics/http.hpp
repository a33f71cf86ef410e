// The part of HTTP that a Prometheus server uses for a scrape.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace gpuwire::server {

// Returns the whole answer to an untrusted request head: the metrics for GET or HEAD of /metrics, a short text for /,
// else an error. The connection closes after the answer (HTTP/1.0). `metrics` is called only if the metrics are
// requested.
std::string http_answer(std::string_view head, const std::function<std::string()>& metrics);
std::string http_error(int status, const char* reason);

}  // namespace gpuwire::server
