#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "protocol/wire/preface.hpp"

using namespace gpuwire::wire;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

PrefaceBytes with_version(uint16_t major, uint16_t minor, const char* release) {
  Preface preface = own_preface();
  preface.protocol_major = major;
  preface.protocol_minor = minor;
  std::memset(preface.release, 0, sizeof preface.release);
  std::strncpy(preface.release, release, sizeof preface.release);
  return encode(preface);
}

}  // namespace

TEST_CASE("a preface survives the wire") {
  Preface preface = own_preface();
  preface.session_id[3] = 9;
  Preface back = decode(encode(preface));
  CHECK(std::memcmp(&preface, &back, sizeof back) == 0);
  CHECK(back.protocol_major == kProtocolMajor);
  CHECK(std::string(back.release) == GPUWIRE_VERSION);
}

TEST_CASE("a client of the same major version is accepted, whatever its minor version") {
  std::string text;
  CHECK(check_client(encode(own_preface()), text) == RefusalCode::accepted);
  CHECK(check_client(with_version(kProtocolMajor, 99, "0.9.0"), text) == RefusalCode::accepted);
}

TEST_CASE("a mismatch of versions names both sides' versions, from either side") {
  std::string text;
  CHECK(check_client(with_version(7, 2, "3.1.4"), text) == RefusalCode::version);
  CHECK(text == "client speaks gpuwire protocol 7.2 (release 3.1.4), server speaks 2.0 (release " GPUWIRE_VERSION ")");
  Preface server;
  CHECK(check_server(with_version(7, 2, "3.1.4"), server, text) == ServerAnswer::version);
  CHECK(text == "client speaks gpuwire protocol 2.0 (release " GPUWIRE_VERSION "), server speaks 7.2 (release 3.1.4)");
}

TEST_CASE("a release name full of anything is printed harmlessly") {
  char release[24];
  std::memset(release, 0x1b, sizeof release);
  Preface preface = own_preface();
  std::memcpy(preface.release, release, sizeof release);
  CHECK(version_text(preface) == "2.0 (release " + std::string(24, '.') + ")");
}

TEST_CASE("a client that does not speak gpuwire is told so") {
  PrefaceBytes bytes{};
  std::string request = "GET / HTTP/1.1\r\nHost: gpu7\r\n\r\n";
  std::memcpy(bytes.data(), request.data(), request.size());
  std::string text;
  CHECK(check_client(bytes, text) == RefusalCode::not_gpuwire);
  CHECK(text.find("GET / HTTP/1.1..Host") != std::string::npos);
  CHECK(std::none_of(text.begin(), text.end(), [](char c) { return c < ' '; }));
}

TEST_CASE("a server's preface is recognised from its first byte on") {
  PrefaceBytes bytes = encode(own_preface());
  Preface preface;
  std::string text;
  for (size_t length = 0; length < bytes.size(); ++length)
    CHECK(check_server(std::span(bytes).first(length), preface, text) == ServerAnswer::incomplete);
  CHECK(check_server(bytes, preface, text) == ServerAnswer::accepted);
  CHECK(check_server(bytes_of("H"), preface, text) == ServerAnswer::not_gpuwire);
  CHECK(check_server(bytes_of("GPUWIRE "), preface, text) == ServerAnswer::not_gpuwire);
}

TEST_CASE("a refusal carries a bounded reason") {
  std::string reason(5000, 'x'), text;
  Preface refusing = refusing_preface(RefusalCode::busy, reason), preface;
  CHECK(reason.size() == kRefusalBytesMax);
  CHECK(check_server(encode(refusing), preface, text) == ServerAnswer::refused);
  CHECK(preface.text_bytes == kRefusalBytesMax);
  refusing.text_bytes = kRefusalBytesMax + 1;
  CHECK(check_server(encode(refusing), preface, text) == ServerAnswer::not_gpuwire);
}

TEST_CASE("strangers are described by what they say") {
  CHECK(describe_stranger(bytes_of("HTTP/1.1 400")) == "not a gpuwire server: an HTTP server answers there");
  CHECK(describe_stranger(bytes_of("SSH-2.0-x")) == "not a gpuwire server: an SSH server answers there");
  CHECK(describe_stranger(bytes_of("\x15\x03\x03")) == "not a gpuwire server: a TLS server answers there");
  CHECK(describe_stranger(bytes_of("\x01\x02hello")) == "not a gpuwire server: it answers \"..hello\"");
}
