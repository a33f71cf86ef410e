#include "server/metrics/http.hpp"

#include <fmt/format.h>

#include "server/metrics/families.hpp"

namespace gpuwire::server {
namespace {

constexpr const char* kPlain = "text/plain; charset=utf-8";

std::string answer(int status, const char* reason, const char* type, std::string_view body, bool with_body,
                   const char* more = "") {
  return fmt::format("HTTP/1.0 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}",
                     status, reason, type, body.size(), more, with_body ? body : std::string_view());
}

}  // namespace

std::string http_error(int status, const char* reason) {
  return answer(status, reason, kPlain, fmt::format("{}\n", reason), true);
}

std::string http_answer(std::string_view head, const std::function<std::string()>& metrics) {
  std::string_view line = head.substr(0, head.find_first_of("\r\n"));
  size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || last <= first || !line.substr(last + 1).starts_with("HTTP/1."))
    return http_error(400, "Bad Request");
  std::string_view method = line.substr(0, first), target = line.substr(first + 1, last - first - 1);
  if (method != "GET" && method != "HEAD")
    return answer(405, "Method Not Allowed", kPlain, "Method Not Allowed\n", true, "Allow: GET, HEAD\r\n");
  target = target.substr(0, target.find('?'));
  bool with_body = method == "GET";
  if (target == "/metrics") return answer(200, "OK", kMetricsContentType, metrics(), with_body);
  if (target == "/") return answer(200, "OK", kPlain, "gpuwire: the metrics are at /metrics\n", with_body);
  return http_error(404, "Not Found");
}

}  // namespace gpuwire::server
