#include <doctest/doctest.h>

#include "server/config/listen_address.hpp"

using gpuwire::server::parse_listen_address;

TEST_CASE("addresses are taken as users write them") {
  auto plain = parse_listen_address("127.0.0.1:9750");
  REQUIRE(plain);
  CHECK(plain->port() == 9750);
  CHECK(plain->address().is_loopback());
  auto six = parse_listen_address("[::1]:0");
  REQUIRE(six);
  CHECK(six->address().is_v6());
  CHECK(six->address().is_loopback());
  auto all = parse_listen_address("0.0.0.0:1");
  REQUIRE(all);
  CHECK(!all->address().is_loopback());
}

TEST_CASE("a text that is no address is refused with the reason") {
  for (const char* text :
       {"", "9750", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:-1", ":9750", "::1:9750"}) {
    CAPTURE(text);
    auto parsed = parse_listen_address(text);
    REQUIRE(!parsed);
    CHECK(parsed.error().find("is not HOST:PORT") != std::string::npos);
  }
}
