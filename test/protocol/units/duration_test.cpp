#include "protocol/units/duration.hpp"

#include <doctest/doctest.h>

using gpuwire::units::parse_duration_ms;

TEST_CASE("durations are read with their units") {
  CHECK(parse_duration_ms("1.5s") == 1500);
  CHECK(parse_duration_ms("2h") == 7'200'000);
  CHECK(parse_duration_ms("5min") == 300'000);
  CHECK_FALSE(parse_duration_ms("30"));
}
