#include "protocol/fatbin/ptx_lexer.hpp"

#include <doctest/doctest.h>

#include <string_view>

using namespace gpuwire::fatbin;

TEST_CASE("A type says how many bits it has, and how often") {
  struct Row {
    std::string_view word;
    uint64_t bits, count;
  };
  for (const Row& row : {Row{".b8", 8, 1}, Row{".f64", 64, 1}, Row{".f16x2", 16, 2}, Row{".b1024", 1024, 1},
                         Row{".u18446744073709551615", UINT64_MAX, 1}, Row{".b8x0", 8, 0}}) {
    CAPTURE(row.word);
    auto type = ptx_type(row.word);
    REQUIRE(type);
    CHECK(type->bits == row.bits);
    CHECK(type->count == row.count);
  }
}

TEST_CASE("A type without a size, or without a whole one, is none, and nothing behind it is read") {
  for (std::string_view word : {"", ".", ".texref", ".e4m3x2", ".b8x", ".b8x2y", ".b8y2", ".f16x2x2",
                                ".b18446744073709551616", ".b8x18446744073709551616", ".pred"}) {
    CAPTURE(word);
    CHECK_FALSE(ptx_type(word));
  }
  CHECK_FALSE(ptx_type(std::string_view(".b8x2").substr(0, 4)));
}
