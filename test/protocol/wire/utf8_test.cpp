#include "protocol/wire/utf8.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace gpuwire::wire;

TEST_CASE("each sequence of UTF-8 has its length, from the first to the last character of it") {
  for (const char* text : {"\x01", "a", "\x7f"}) CHECK(utf8_length(text) == 1);
  for (const char* text : {"\xc2\x80", "\xdf\xbf"}) CHECK(utf8_length(text) == 2);
  for (const char* text : {"\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbf"})
    CHECK(utf8_length(text) == 3);
  for (const char* text : {"\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) CHECK(utf8_length(text) == 4);
}

TEST_CASE("bytes that no encoder writes are no UTF-8") {
  // Continuations alone, cut short, longer than need be, halves of surrogates, past the last character.
  for (const char* text :
       {"\x80", "\xbf", "\xc2", "\xe2\x82", "\xf0\x9f\x98", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf",
        "\xed\xa0\x80", "\xed\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc2x", "\xe2\x82x"})
    CHECK(utf8_length(text) == 0);
}

TEST_CASE("the line is told in which text stops being UTF-8") {
  CHECK(line_without_utf8("") == 0);
  CHECK(line_without_utf8("a\n\xc3\xa4\n\xe2\x82\xac\n") == 0);
  CHECK(line_without_utf8("\xff") == 1);
  CHECK(line_without_utf8("a\n\nb\xe4\n") == 3);
  CHECK(line_without_utf8(std::string(1, '\0') + "\n\xc3") == 2);
}
