#include "server/log/log.hpp"

#include <chrono>
#include <sstream>

#include <doctest/doctest.h>
#include <spdlog/details/log_msg.h>

#include "server/log/escape.hpp"

using namespace gpuwire::server;

namespace {

std::string formatted(LogFormat format, const std::string& logger, const std::string& payload) {
  auto formatter = log_formatter(format);
  spdlog::details::log_msg message(std::chrono::system_clock::from_time_t(1'700'000'000), spdlog::source_loc{}, logger,
                                   spdlog::level::warn, payload);
  spdlog::memory_buf_t out;
  formatter->format(message, out);
  return std::string(out.data(), out.size());
}

}  // namespace

TEST_CASE("Escaped text keeps letters of all scripts and shows control characters as their bytes") {
  CHECK(escaped("training run 7") == "training run 7");
  CHECK(escaped("Müller 北京 🙂") == "Müller 北京 🙂");
  CHECK(escaped("a\nb\r\x1b[2J\x7f") == "a\\x0ab\\x0d\\x1b[2J\\x7f");
  CHECK(escaped("\xc2\x9b"
                "31m") == "\\xc2\\x9b31m");  // the 8-bit control sequence introducer
  CHECK(escaped(std::string_view("\0x", 2)) == "\\x00x");
}

TEST_CASE("Escaped text shows as bytes what turns a line around, ends it or hides in it") {
  CHECK(escaped("a\u202eb") == "a\\xe2\\x80\\xaeb");
  CHECK(escaped("\u2066") == "\\xe2\\x81\\xa6");
  CHECK(escaped("\u2028") == "\\xe2\\x80\\xa8");
  CHECK(escaped("\u200b\ufeff") == "\\xe2\\x80\\x8b\\xef\\xbb\\xbf");
  const std::string line = formatted(LogFormat::text, "gpuwire-serve", "session 1: \u202egnp.exe\u2028forged");
  CHECK(line.find("\u202e") == std::string::npos);
  CHECK(line.find("\u2028") == std::string::npos);
}

TEST_CASE("Escaped text shows bytes that are not UTF-8 as bytes") {
  CHECK(escaped("\xff") == "\\xff");
  CHECK(escaped("\xe2\x82") == "\\xe2\\x82");           // cut off
  CHECK(escaped("\xc0\xaf") == "\\xc0\\xaf");           // overlong
  CHECK(escaped("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // a surrogate
  CHECK(escaped("\xf5\x80\x80\x80") == "\\xf5\\x80\\x80\\x80");
}

TEST_CASE("A line of the text log is one line whatever a client calls itself") {
  std::string line = formatted(LogFormat::text, "gpuwire-serve", "session 1: prog\n2026 info forged \x1b[31m");
  CHECK(line.find('\n') == line.size() - 1);
  CHECK(line.find('\x1b') == std::string::npos);
  CHECK(line.find("\\x0a2026 info forged \\x1b[31m") != std::string::npos);
}

TEST_CASE("A line of the JSON log has time, level and text, and cannot be forged into an event") {
  std::string line = formatted(LogFormat::json, "gpuwire-serve",
                               R"("event":"admitted","x":1} )"
                               "\n\x1b\xff");
  auto json = LogFields::parse(line);
  CHECK(json["time"] == "2023-11-14T22:13:20.000Z");
  CHECK(json["level"] == "warning");
  CHECK(json["event"] == "message");
  CHECK(json["text"].get<std::string>().starts_with(R"("event":"admitted")"));
  CHECK(line.find('\n') == line.size() - 1);
}

TEST_CASE("An event in the JSON log carries its fields") {
  std::string line = formatted(LogFormat::json, "event", R"("event":"ended","text":"t","fields":{"session":3})");
  auto json = LogFields::parse(line);
  CHECK(json["event"] == "ended");
  CHECK(json["fields"]["session"] == 3);
}

TEST_CASE("Fields are ASCII and their strings are bounded") {
  std::string line = json_line({{"program", std::string("ü\n\x7f\xff")},
                                {"long", std::string(10'000, 'x')},
                                {"list", {std::string(10'000, 'y')}}});
  for (char byte : line) CHECK((byte >= 0x20 && byte < 0x7f));
  CHECK(line.size() < 3 * kLogStringBytesMax);
}
