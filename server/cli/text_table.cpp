#include "server/cli/text_table.hpp"

#include <algorithm>

#include "server/log/escape.hpp"

namespace gpuwire::server {
namespace {

bool begins_code_point(char byte) { return (uint8_t(byte) & 0xc0) != 0x80; }

}  // namespace

size_t columns_of(std::string_view text) { return size_t(std::count_if(text.begin(), text.end(), begins_code_point)); }

std::string cut_to(std::string_view text, size_t columns) {
  if (columns_of(text) <= columns) return std::string(text);
  if (columns == 0) return {};
  size_t end = 0, seen = 0;
  for (; end < text.size(); ++end) {
    if (begins_code_point(text[end]) && seen++ == columns - 1) break;
  }
  return std::string(text.substr(0, end)) + "…";
}

void TextTable::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (size_t i = 0; i < cells.size(); ++i) cells[i] = cut_to(escaped(cells[i]), columns_[i].columns_max);
  rows_.push_back(std::move(cells));
}

std::vector<std::string> TextTable::lines() const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t widest = columns_of(columns_[i].heading);
    for (const auto& row : rows_) widest = std::max(widest, columns_of(row[i]));
    widths.push_back(widest);
  }
  auto line_of = [&](auto cell) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      std::string_view text = cell(i);
      std::string fill(widths[i] - columns_of(text), ' ');
      if (i != 0) line += "  ";
      line += columns_[i].align == Align::left ? std::string(text) + fill : fill + std::string(text);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
  };
  std::vector<std::string> lines{line_of([&](size_t i) -> std::string_view { return columns_[i].heading; })};
  for (const auto& row : rows_) lines.push_back(line_of([&](size_t i) -> std::string_view { return row[i]; }));
  return lines;
}

}  // namespace gpuwire::server
