#include "protocol/units/day.hpp"

#include <doctest/doctest.h>

using gpuwire::units::is_day;

TEST_CASE("a day is a year, a month and a day of digits with dashes between them") {
  CHECK(is_day("2026-11-28"));
  for (const char* text : {"", "2026-11-2", "2026-11-280", "2026/11/28", "26-11-28", "2026-1a-28", "2026-11-28 "})
    CHECK_FALSE_MESSAGE(is_day(text), text);
}
