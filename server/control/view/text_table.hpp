// TextTable lays out columns of text under headings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::server {

// Returns the number of terminal columns of the text: one for each code point.
size_t columns_of(std::string_view text);
// Cuts the text to at most this many columns; a cut text ends in "…".
std::string cut_to(std::string_view text, size_t columns);

class TextTable {
 public:
  enum class Align : uint8_t { left, right };
  struct Column {
    std::string heading;
    Align align = Align::left;
    // Wider cells are cut if lines() has a width.
    size_t columns_max = 40;
    // 0: always shown; without room, the highest is left out first.
    unsigned dispensable = 0;
    // not 0: the column is narrowed to this before columns with dispensable <= 2 are left out
    size_t columns_min = 0;
    // Takes the remaining room, up to its widest cell.
    bool grows = false;
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell for each column; control characters in it are escaped.
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  // The heading and the rows, without line ends and without spaces at the end. `width`: the columns of the screen; 0:
  // nothing is cut or left out, for a file or another program. A table without dispensable columns may be wider.
  std::vector<std::string> lines(size_t width) const;

 private:
  std::vector<size_t> widths(bool cut) const;
  // Selects the columns that have room, and their widths.
  void fit(size_t width, std::vector<size_t>& widths, std::vector<size_t>& shown) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace gpuwire::server
