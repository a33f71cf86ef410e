// The colours and keys of `gpuwire top`. test/end_to_end/top_test.py has it on a terminal, at a server.
#include "command_line/terminal/top_view.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

using gpuwire::TopView;
using Lines = std::vector<std::string>;

namespace {

const Lines kLines{"gpuwire 1.0, 2 sessions",
                   "SESSION  TENANT  STATE            GPU%",
                   "      4  bob     running!         12",
                   "      5  anna    running*         50",
                   "      6  carl    detached 4m50s   0",
                   "      7  carl    running          0",
                   "warning: session 4 of bob: a kernel has been running for 70 s",
                   "PLACE SESSION TENANT"};

std::string ended;  // the last session that was to end

TopView view(bool colours) {
  return {"gpu", [](const std::string& number) { return ended = number, "session " + number + " was told to end"; },
          "GPU%: its part of the GPU", colours};
}

void type(TopView& top, std::string_view keys) {
  for (char key : keys) CHECK(top.press(key));
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("warnings are red, the holder of the lease is green, a detached session yellow, and headings are bold") {
  const Lines shown = view(true).shown(kLines);
  auto in = [](const char* colour, const std::string& line) { return colour + line + "\x1b[0m"; };
  CHECK(shown == Lines{kLines[0], in("\x1b[1m", kLines[1]), in("\x1b[31m", kLines[2]), in("\x1b[32m", kLines[3]),
                       in("\x1b[33m", kLines[4]), kLines[5], in("\x1b[31m", kLines[6]), in("\x1b[1m", kLines[7])});
  CHECK(view(false).shown(kLines) == kLines);
}

TEST_CASE("NO_COLOR and a terminal without any say that no colours are wanted") {
  setenv("TERM", "xterm", 1);
  unsetenv("NO_COLOR");
  CHECK(gpuwire::colours_are_wanted());
  setenv("NO_COLOR", "", 1);  // https://no-color.org: when present and not empty
  CHECK(gpuwire::colours_are_wanted());
  setenv("NO_COLOR", "1", 1);
  CHECK_FALSE(gpuwire::colours_are_wanted());
  unsetenv("NO_COLOR");
  setenv("TERM", "dumb", 1);
  CHECK_FALSE(gpuwire::colours_are_wanted());
}

TEST_CASE("a key sorts, and the footer marks by which") {
  TopView top = view(true);
  CHECK(top.sort() == "gpu");
  for (auto [key, sort, text] : {std::tuple{'m', "memory", "m memory"},
                                 {'l', "link", "l link"},
                                 {'t', "tenant", "t tenant"},
                                 {'i', "id", "i number"},
                                 {'g', "gpu", "g GPU"}}) {
    CHECK(top.press(key));
    CHECK(top.sort() == sort);
    CHECK(has(top.footer(200), std::string("\x1b[7m") + text + "\x1b[0m"));
  }
}

TEST_CASE("a session is ended by its number after a yes alone") {
  TopView top = view(true);
  ended.clear();
  type(top, "x12\x7f");
  CHECK(has(top.footer(80), "number of the session to end: 1_"));
  type(top, "\x1b");
  CHECK(has(top.footer(80), "q quit"));
  type(top, "x4\r");
  CHECK(has(top.footer(80), "end it? y n"));
  type(top, "n");
  CHECK(top.footer(80) == "nothing was ended");
  CHECK(ended.empty());
  type(top, "x4\ry");
  CHECK(top.footer(80) == "session 4 was told to end");
  CHECK(ended == "4");
  CHECK_FALSE(top.press('q'));
}

TEST_CASE("the help has the keys and the columns, and goes with the next key") {
  TopView top = view(true);
  type(top, "h");
  const Lines help = top.shown(kLines);
  CHECK(has(help.front(), "Keys on a terminal: q quits"));
  CHECK(help.back() == "GPU%: its part of the GPU");
  type(top, " ");
  CHECK(top.shown(kLines).size() == kLines.size());
  CHECK(has(top.footer(80), "q quit"));
}
