// What both kinds of `gpuwire top` do with a terminal: the keys, and which lines of the tables are shown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "command_line/terminal/terminal.hpp"

namespace gpuwire {

// How sessions can be sorted, by the names that --sort has; the first is the usual one.
inline constexpr const char* kTopSorts[] = {"gpu", "memory", "link", "tenant", "id"};

// For --help.
inline constexpr const char* kTopKeysHelp =
    "Keys on a terminal: q quits; g m l t i sort by GPU, memory, link, tenant, session number; j and k\n"
    "scroll. A narrow terminal shows fewer columns; a file or another program gets all of them, uncut.\n";

class TopView {
 public:
  explicit TopView(std::string_view sort) : sort_(sort) {}

  // One of kTopSorts.
  std::string_view sort() const { return sort_; }
  // What a key does. False: quit.
  bool press(char key);
  // The lines from where the keys have scrolled to, and a line with the keys.
  void draw(Terminal& terminal, const std::vector<std::string>& lines);

 private:
  std::string_view sort_;
  size_t first_line_ = 0;
};

}  // namespace gpuwire
