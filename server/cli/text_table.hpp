// Columns of text under headings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::server {

// How many columns of a terminal the text takes, one for each code point.
size_t columns_of(std::string_view text);
// At most so many columns; what is cut ends in "…".
std::string cut_to(std::string_view text, size_t columns);

class TextTable {
 public:
  enum class Align : uint8_t { left, right };
  struct Column {
    std::string heading;
    Align align = Align::left;
    size_t columns_max = 40;  // wider cells are cut
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell for each column; control characters in it are escaped.
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  // The heading and the rows, without line ends and without spaces at the end.
  std::vector<std::string> lines() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace gpuwire::server
