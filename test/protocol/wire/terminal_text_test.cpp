#include "protocol/wire/terminal_text.hpp"

#include <doctest/doctest.h>

#include <iterator>
#include <string>

using namespace gpuwire::wire;

TEST_CASE("visible characters stay, in every script") {
  for (const char* text : {"training run 7", "Müller 北京 🙂", "שלום", "مرحبا", "हिन्दी", "ไทย", "~!\"#$%", ""})
    CHECK(ForeignText(text).str() == text);
}

TEST_CASE("characters that turn, hide, end or empty the text beside them become blank, byte for byte") {
  for (const char* text :
       {"\u202e", "\u2066", "\u2069", "\u2028", "\u2029", "\u200b", "\u200d", "\u200f",     "\u00ad",
        "\u00a0", "\u3000", "\u061c", "\ufeff", "\u2060", "\u3164", "\ue000", "\U000e0041", "\U000e0100",
        "\ufe0f", "\uffff", "\u0085", "\x1b",   "\n",     "\t",     "\x7f",   "\u009b"}) {
    CAPTURE(text);
    const std::string around = "a" + std::string(text) + "b";
    CHECK(ForeignText(around).str() == "a" + std::string(std::string(text).size(), ' ') + "b");
    CHECK_FALSE(next_piece(text).shown);
  }
}

TEST_CASE("bytes that are no text become blank, and what follows them is read") {
  CHECK(ForeignText("\xff\x9b\xe2\x80").str() == "    ");
  CHECK(ForeignText("\xe2\x80x").str() == "  x");
  CHECK(ForeignText(std::string("\0x", 2)).str() == " x");
  char buffer[] = "ab\x1b[2Jcd";
  blank_unshown(buffer, 4);
  CHECK(std::string(buffer) == "ab [2Jcd");
}

TEST_CASE("the ranges follow each other, so that a search finds them") {
  for (size_t i = 0; i < std::size(kUnshown); ++i) {
    CHECK(kUnshown[i].first <= kUnshown[i].last);
    if (i > 0) CHECK(kUnshown[i - 1].last + 1 < kUnshown[i].first);
    CHECK_FALSE(is_shown(kUnshown[i].first));
    CHECK_FALSE(is_shown(kUnshown[i].last));
    if (kUnshown[i].last < 0x10ffff) CHECK(is_shown(kUnshown[i].last + 1));
  }
}
