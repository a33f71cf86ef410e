// The terminal of both kinds of `gpuwire top`: the keys, the shown lines of the tables, and their colours.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "command_line/terminal/terminal.hpp"

namespace gpuwire {

// How sessions can be sorted, by the names that --sort has; the first is the usual one.
inline constexpr const char* kTopSorts[] = {"gpu", "memory", "link", "tenant", "id"};

// For --help.
inline constexpr const char* kTopKeysHelp =
    "Keys on a terminal: q quits; h shows help; g m l t i sort by GPU, memory, link, tenant, session\n"
    "number (the footer shows by which); j and k scroll; x ends a session, after a question. A narrow\n"
    "terminal shows fewer columns; a file or another program gets all of them, uncut. With NO_COLOR in\n"
    "the environment nothing is coloured.\n";

class TopView {
 public:
  // Ends the session of this number; what came of it, in a line.
  using EndSession = std::function<std::string(const std::string& number)>;
  // `columns_help`: lines about the columns, for the help. `colours`: colours_are_wanted() says.
  TopView(std::string_view sort, EndSession end_session, const std::string& columns_help, bool colours);

  // One of kTopSorts.
  std::string_view sort() const { return sort_; }
  // Carries out a key. Returns false for quitting.
  bool press(char key);
  // The lines from where the keys have scrolled to, and a line with the keys, or with a question.
  void draw(Terminal& terminal, const std::vector<std::string>& lines);

  // The output of draw() to the terminal.
  std::vector<std::string> shown(const std::vector<std::string>& lines) const;
  std::string footer(size_t columns) const;

 private:
  enum class Mode : uint8_t {
    tables,
    help,
    number,  // it asks which session to end
    sure,    // it asks whether to end it
  };
  bool press_in_tables(char key);
  void press_in_number(char key);
  // The line of the session that is to end, as the tables have it.
  std::string line_of_number() const;

  std::string_view sort_;
  const EndSession end_session_;
  std::vector<std::string> help_;
  const bool colours_;
  Mode mode_ = Mode::tables;
  size_t first_line_ = 0;
  // The number to end, and the result of ending one; until the next key.
  std::string number_, notified_;
  // The lines of the last draw().
  std::vector<std::string> lines_;
};

// By NO_COLOR and TERM.
bool colours_are_wanted();

}  // namespace gpuwire
