#include "server/control/view/text_table.hpp"

#include <algorithm>
#include <numeric>

#include "server/log/escape.hpp"

namespace gpuwire::server {
namespace {

constexpr std::string_view kGap = "  ";
// Columns whose `dispensable` is at most this are left out only after others have been narrowed.
constexpr unsigned kNarrowedBefore = 2;

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
  for (std::string& cell : cells) cell = escaped(cell);
  rows_.push_back(std::move(cells));
}

std::vector<size_t> TextTable::widths(bool cut) const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t widest = columns_of(columns_[i].heading);
    for (const auto& row : rows_)
      widest = std::max(widest, cut ? std::min(columns_of(row[i]), columns_[i].columns_max) : columns_of(row[i]));
    widths.push_back(widest);
  }
  return widths;
}

void TextTable::fit(size_t width, std::vector<size_t>& widths, std::vector<size_t>& shown) const {
  auto taken = [&] {
    size_t sum = kGap.size() * (shown.size() - 1);
    for (size_t i : shown) sum += widths[i];
    return sum;
  };
  auto drop_above = [&](unsigned kept) {
    while (taken() > width) {
      auto least = std::max_element(shown.begin(), shown.end(), [&](size_t a, size_t b) {
        return columns_[a].dispensable < columns_[b].dispensable;
      });
      if (columns_[*least].dispensable <= kept) break;
      shown.erase(least);
    }
  };
  drop_above(kNarrowedBefore);
  for (size_t i : shown) {
    const size_t least = columns_[i].columns_min, over = taken() > width ? taken() - width : 0;
    if (least != 0 && widths[i] > least) widths[i] -= std::min(over, widths[i] - least);
  }
  drop_above(0);
  for (size_t i : shown) {
    if (!columns_[i].grows || taken() >= width) continue;
    size_t widest = widths[i];
    for (const auto& row : rows_) widest = std::max(widest, columns_of(row[i]));
    widths[i] += std::min(widest - widths[i], width - taken());
  }
}

std::vector<std::string> TextTable::lines(size_t width) const {
  std::vector<size_t> widths = this->widths(width != 0);
  std::vector<size_t> shown(columns_.size());
  std::iota(shown.begin(), shown.end(), size_t(0));
  if (width != 0) fit(width, widths, shown);
  auto line_of = [&](auto cell) {
    std::string line;
    for (size_t i : shown) {
      std::string text = width == 0 ? std::string(cell(i)) : cut_to(cell(i), widths[i]);
      std::string fill(widths[i] - columns_of(text), ' ');
      if (i != shown.front()) line += kGap;
      line += columns_[i].align == Align::left ? text + fill : fill + text;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
  };
  std::vector<std::string> lines{line_of([&](size_t i) -> std::string_view { return columns_[i].heading; })};
  for (const auto& row : rows_) lines.push_back(line_of([&](size_t i) -> std::string_view { return row[i]; }));
  return lines;
}

}  // namespace gpuwire::server
