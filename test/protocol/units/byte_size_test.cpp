#include "protocol/units/byte_size.hpp"

#include <doctest/doctest.h>

using gpuwire::units::parse_byte_size;

TEST_CASE("sizes are read with their units, binary and decimal") {
  CHECK(parse_byte_size("20GiB") == uint64_t(20) << 30);
  CHECK(parse_byte_size("2.5GiB") == uint64_t(5) << 29);
  CHECK(parse_byte_size("512 MiB") == uint64_t(512) << 20);
  CHECK(parse_byte_size("20GB") == uint64_t(20'000'000'000));
  CHECK(parse_byte_size("1.5 KB") == uint64_t(1500));
  CHECK(parse_byte_size("4096B") == uint64_t(4096));
  CHECK(parse_byte_size("0") == uint64_t(0));
}

TEST_CASE("a number without a unit is refused, and the units are named") {
  auto bare = parse_byte_size("4096");
  REQUIRE_FALSE(bare);
  CHECK(bare.error() ==
        "\"4096\" is not a size: a unit is missing, one of B, KB, MB, GB, TB (by 1000), KiB, MiB, GiB, TiB (by 1024); "
        "write "
        "for example \"20GiB\"");
}

TEST_CASE("a text that is no size is refused") {
  for (const char* none :
       {"", "GiB", "-1GiB", "1Q", "20G", "20gib", "1GiBs", "1e30GiB", "nan", "inf", "99999999999TiB", " 1GiB"}) {
    CAPTURE(none);
    CHECK_FALSE(parse_byte_size(none));
  }
}
