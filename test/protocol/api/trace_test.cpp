// How arguments look in a trace.
#include <doctest/doctest.h>

#include <string>

#include "client/trace.hpp"

namespace gpuwire::client::trace {
namespace {

constexpr Parameter kParameters[] = {{"dptr", Format::pointer},      {"count", Format::number},
                                     {"dev", Format::signed_number}, {"bias", Format::real},
                                     {"name", Format::string},       {"location", Format::opaque}};
constexpr Layout kLayout{kParameters, 6};

Arguments<6> sample() {
  return {&kLayout,
          {word(uint64_t(0xabc)), word(7u), word(-1), word(1.5f), word(static_cast<const char*>("kernel")),
           word(uint64_t(0))}};
}

TEST_CASE("each argument is printed by its kind") {
  char text[200];
  Arguments<6> arguments = sample();
  print(&arguments, text, sizeof text);
  CHECK(std::string(text) == "dptr=0xabc, count=7, dev=-1, bias=1.5, name=\"kernel\", location={...}");
}

TEST_CASE("a null string is printed as a null pointer") {
  char text[200];
  static constexpr Parameter kName[] = {{"name", Format::string}};
  static constexpr Layout kOne{kName, 1};
  Arguments<1> arguments{&kOne, {word(static_cast<const char*>(nullptr))}};
  print(&arguments, text, sizeof text);
  CHECK(std::string(text) == "name=0x0");
}

TEST_CASE("a text that is too long is cut and stays terminated, whatever the room") {
  Arguments<6> arguments = sample();
  char whole[200];
  print(&arguments, whole, sizeof whole);
  for (unsigned room = 1; room <= std::string(whole).size(); ++room) {
    std::string text(room + 1, '#');
    print(&arguments, text.data(), room);
    CHECK(text[room] == '#');
    CHECK(std::string(text.c_str()) == std::string(whole).substr(0, room - 1));
  }
}

TEST_CASE("a function without parameters prints nothing") {
  char text[8] = "before";
  static constexpr Layout kNone{nullptr, 0};
  Arguments<1> arguments{&kNone, {0}};
  print(&arguments, text, sizeof text);
  CHECK(std::string(text).empty());
}

}  // namespace
}  // namespace gpuwire::client::trace
