#include "protocol/units/unclosed_string.hpp"

#include <doctest/doctest.h>

using gpuwire::units::line_of_unclosed_string;

TEST_CASE("a string without an end is found by the line in which it begins") {
  CHECK(line_of_unclosed_string("a = 1\nb = \"x\nc = \"y\"\n") == 2);
  CHECK(line_of_unclosed_string("a = 'x\n") == 1);
  CHECK(line_of_unclosed_string("a = \"x") == 1);
  CHECK(line_of_unclosed_string("a = \"x\\\"\n") == 1);
  CHECK(line_of_unclosed_string("\na = \"\"\"x\ny\n\"\nz\n") == 2);
}

TEST_CASE("strings that end, and quotes in comments and in other strings, are none") {
  CHECK(line_of_unclosed_string("") == 0);
  CHECK(line_of_unclosed_string("# it's \"\na = \"it's\"\nb = 'say \"'\n") == 0);
  CHECK(line_of_unclosed_string("a = \"\\\\\"\nb = \"\"\nc = ''\n") == 0);
  CHECK(line_of_unclosed_string("a = \"\"\"x\n\"y\" \\\"\"\"\n\"\"\"\nb = '''\n''x\n'''\n") == 0);
}
