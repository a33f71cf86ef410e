// Columns of text under headings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::server {

// How many columns of a terminal the text takes, one for each code point.
size_t columns_of(std::string_view text);
// At most this many columns; a cut text ends in "…".
std::string cut_to(std::string_view text, size_t columns);

class TextTable {
 public:
  enum class Align : uint8_t { left, right };
  struct Column {
    std::string heading;
    Align align = Align::left;
    size_t columns_max = 40;   // wider cells are cut, where there is a width to keep to
    unsigned dispensable = 0;  // 0: always shown; of the others, those with the highest go first when there is no room
    size_t columns_min = 0;    // not 0: is narrowed down to this before columns that are dispensable to 2 or less go
    bool grows = false;        // takes the room that the others leave, up to its widest cell
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell for each column; control characters in it are escaped.
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  // The heading and the rows, without line ends and without spaces at the end. `width`: the columns of the screen; 0: a
  // file or another program, for which nothing is cut or left out. A table whose every column is needed may be wider.
  std::vector<std::string> lines(size_t width) const;

 private:
  std::vector<size_t> widths(bool cut) const;
  // The columns that have room, of these widths.
  void fit(size_t width, std::vector<size_t>& widths, std::vector<size_t>& shown) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace gpuwire::server
