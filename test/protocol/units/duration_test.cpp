#include "protocol/units/duration.hpp"

#include <doctest/doctest.h>

using gpuwire::units::parse_duration_ms;
using gpuwire::units::seconds_text;

TEST_CASE("durations are read with their units") {
  CHECK(parse_duration_ms("1.5s") == 1500);
  CHECK(parse_duration_ms("2h") == 7'200'000);
  CHECK(parse_duration_ms("5min") == 300'000);
  CHECK_FALSE(parse_duration_ms("30"));
}

TEST_CASE("durations are written in seconds, with as many digits as they have") {
  CHECK(seconds_text(0) == "0 s");
  CHECK(seconds_text(5) == "0.005 s");
  CHECK(seconds_text(500) == "0.5 s");
  CHECK(seconds_text(1500) == "1.5 s");
  CHECK(seconds_text(20'000) == "20 s");
  CHECK(seconds_text(7'200'010) == "7200.01 s");
}
