#include "command_line/terminal/top_view.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>

namespace gpuwire {
namespace {

constexpr char kControlC = 3, kEscape = 27, kBackspace = 8, kDelete = 127;
constexpr size_t kNumberBytesMax = 19;

struct SortKeyName {
  char key;
  const char* sort;
  const char* text;
};
constexpr SortKeyName kSortKeys[] = {{'g', "gpu", "g GPU"},
                                     {'m', "memory", "m memory"},
                                     {'l', "link", "l link"},
                                     {'t', "tenant", "t tenant"},
                                     {'i', "id", "i number"}};

constexpr const char* kBold = "\x1b[1m";
constexpr const char* kRed = "\x1b[31m";
constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kReverse = "\x1b[7m";
constexpr const char* kPlain = "\x1b[0m";

// The names of columns: words of capitals, such as GPU%, IN/s and PEAK.
bool is_heading(const std::string& line) {
  std::istringstream words(line);
  size_t count = 0;
  for (std::string word; words >> word; ++count) {
    if (word.ends_with("/s")) word.resize(word.size() - 2);
    if (!std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isupper(c) || c == '%'; }))
      return false;
  }
  return count > 1;
}

// Empty: the terminal's own.
const char* colour_of(const std::string& line) {
  if (is_heading(line)) return kBold;
  if (line.find(" running! ") != line.npos || line.starts_with("warning: ")) return kRed;
  if (line.find(" running* ") != line.npos) return kGreen;
  if (line.find(" detached ") != line.npos) return kYellow;
  return "";
}

}  // namespace

TopView::TopView(std::string_view sort, EndSession end_session, const std::string& columns_help, bool colours)
    : sort_(sort), end_session_(std::move(end_session)), colours_(colours) {
  std::string all = kTopKeysHelp;
  all += '\n';
  all += columns_help;
  std::istringstream text(all);
  for (std::string line; std::getline(text, line);) help_.push_back(line);
}

bool TopView::press(char key) {
  notified_.clear();
  if (key == kControlC) return false;
  switch (mode_) {
    case Mode::tables: return press_in_tables(key);
    case Mode::help:
      if (key == 'q' || key == 'Q') return false;
      if (key == 'j') ++first_line_;
      else if (key == 'k') first_line_ -= first_line_ > 0;
      else mode_ = Mode::tables, first_line_ = 0;
      break;
    case Mode::number: press_in_number(key); break;
    case Mode::sure:
      mode_ = Mode::tables;
      notified_ = key == 'y' || key == 'Y' ? end_session_(number_) : "nothing was ended";
  }
  return true;
}

bool TopView::press_in_tables(char key) {
  for (const SortKeyName& one : kSortKeys)
    if (one.key == key) sort_ = one.sort;
  switch (key) {
    case 'q':
    case 'Q': return false;
    case 'h':
    case '?': mode_ = Mode::help, first_line_ = 0; break;
    case 'x': mode_ = Mode::number, number_.clear(); break;
    case 'j': ++first_line_; break;
    case 'k': first_line_ -= first_line_ > 0; break;
  }
  return true;
}

void TopView::press_in_number(char key) {
  if (key >= '0' && key <= '9') {
    if (number_.size() < kNumberBytesMax) number_ += key;
  } else if (key == kBackspace || key == kDelete) {
    if (!number_.empty()) number_.pop_back();
  } else if ((key == '\r' || key == '\n') && !number_.empty()) {
    mode_ = Mode::sure;
  } else if (key == kEscape || key == 'q' || key == 'x') {
    mode_ = Mode::tables;
  }
}

std::string TopView::line_of_number() const {
  std::string table;  // the name of its first column
  for (const std::string& line : lines_) {
    std::istringstream words(line);
    std::string first, second;
    words >> first >> second;
    if (is_heading(line)) table = first;
    // In the table of the queue the place comes first.
    const bool found = (table == "SESSION" && first == number_) || (table == "PLACE" && second == number_);
    if (found) return line.substr(line.find_first_not_of(' '));
  }
  return number_ + ", which is not shown here";
}

std::vector<std::string> TopView::shown(const std::vector<std::string>& lines) const {
  if (mode_ == Mode::help) return help_;
  if (!colours_) return lines;
  std::vector<std::string> coloured = lines;
  for (std::string& line : coloured)
    if (const char* colour = colour_of(line); *colour) line = colour + line + kPlain;
  return coloured;
}

std::string TopView::footer(size_t columns) const {
  if (!notified_.empty()) return notified_.substr(0, columns);
  switch (mode_) {
    case Mode::help: return std::string("any key: back   j k scroll   q quit").substr(0, columns);
    case Mode::number: return ("number of the session to end: " + number_ + "_  (Enter; Esc: none)").substr(0, columns);
    case Mode::sure: {
      // The question is what must not be cut.
      const std::string ask = " - end it? y n";
      const std::string line = line_of_number();
      return line.substr(0, columns - std::min(columns, ask.size())) + ask;
    }
    case Mode::tables: break;
  }
  std::string keys = "q quit  h help  x end  j k scroll  by:";
  size_t width = keys.size();
  for (const SortKeyName& one : kSortKeys) {
    const std::string text = one.text;
    if (width + 1 + text.size() > columns) break;
    width += 1 + text.size();
    keys += ' ';
    keys += one.sort == sort_ ? kReverse + text + kPlain : text;
  }
  // With a sort behind them the keys fit.
  return width > columns ? keys.substr(0, columns) : keys;
}

void TopView::draw(Terminal& terminal, const std::vector<std::string>& lines) {
  lines_ = lines;
  const std::vector<std::string> all = shown(lines);
  // The last line does not go further up than the last row.
  first_line_ = std::min(first_line_, all.size() - std::min(all.size(), terminal.rows()));
  terminal.draw(all, first_line_, footer(terminal.columns()));
}

bool colours_are_wanted() {
  const char* none = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return !(none && *none) && !(terminal && std::string_view(terminal) == "dumb");
}

}  // namespace gpuwire
