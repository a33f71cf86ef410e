#include "server/metrics/http.hpp"

#include <doctest/doctest.h>

using namespace gpuwire::server;

namespace {

std::string ask(const std::string& head) {
  return http_answer(head, [] { return std::string("gpuwire_up 1\n"); });
}

}  // namespace

TEST_CASE("A scrape gets the metrics, with their type and length") {
  std::string answer = ask("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n");
  CHECK(answer.starts_with("HTTP/1.0 200 OK\r\n"));
  CHECK(answer.find("Content-Type: text/plain; version=0.0.4") != std::string::npos);
  CHECK(answer.find("Content-Length: 13\r\n") != std::string::npos);
  CHECK(answer.ends_with("\r\n\r\ngpuwire_up 1\n"));
  CHECK(ask("GET /metrics?name=x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 200"));
}

TEST_CASE("HEAD gets the same without the body") {
  std::string answer = ask("HEAD /metrics HTTP/1.1\r\n\r\n");
  CHECK(answer.find("Content-Length: 13\r\n") != std::string::npos);
  CHECK(answer.ends_with("\r\n\r\n"));
}

TEST_CASE("Other requests get errors, and none of their text back") {
  CHECK(ask("GET /secret HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 404"));
  CHECK(ask("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 405"));
  for (const char* head : {"", "\r\n\r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n", "GET /metrics FTP/1\r\n\r\n",
                           " \r\n\r\n", "GET  HTTP/1.1 \r\n\r\n"})
    CHECK(ask(head).starts_with("HTTP/1.0 400"));
  CHECK(ask("GET /<script> HTTP/1.1\r\n\r\n").find("script") == std::string::npos);
}
