#include "server/web/html.hpp"

#include "server/log/escape.hpp"
#include "server/web/limits.hpp"

namespace gpuwire::server::web {

Html::Html(std::string_view text) {
  for (char c : escaped(text)) {
    switch (c) {
      case '&': text_ += "&amp;"; break;
      case '<': text_ += "&lt;"; break;
      case '>': text_ += "&gt;"; break;
      case '"': text_ += "&quot;"; break;
      case '\'': text_ += "&#39;"; break;
      default: text_ += c;
    }
  }
}

Html Html::number(uint64_t value) { return std::to_string(value); }

namespace {

// Returns the class attribute of a column's cells, or nothing.
Html class_of(const Table::Column& column) {
  if (column.number) return Html::markup(" class=\"number\"");
  return column.sentence ? Html::markup(" class=\"sentence\"") : Html();
}

}  // namespace

void Table::add(std::vector<Html> cells) {
  if (rows_.size() < kRowsMax) rows_.push_back(std::move(cells));
  else ++left_out_;
}

Html Table::html(const char* when_empty) const {
  if (rows_.empty()) return Html::markup("<p>") + when_empty + Html::markup("</p>\n");
  Html out = Html::markup("<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"") + caption_ +
             Html::markup("\"><table>\n<caption>") + caption_ + Html::markup("</caption>\n<thead><tr>");
  for (const Column& column : columns_)
    out += Html::markup("<th scope=\"col\"") + class_of(column) + Html::markup(">") + column.heading +
           Html::markup("</th>");
  out += Html::markup("</tr></thead>\n<tbody>\n");
  for (const std::vector<Html>& row : rows_) {
    out += Html::markup("<tr>");
    for (size_t i = 0; i < row.size() && i < columns_.size(); ++i) {
      const Html kind = class_of(columns_[i]);
      if (i == 0) out += Html::markup("<th scope=\"row\"") + kind + Html::markup(">") + row[i] + Html::markup("</th>");
      else out += Html::markup("<td") + kind + Html::markup(">") + row[i] + Html::markup("</td>");
    }
    out += Html::markup("</tr>\n");
  }
  out += Html::markup("</tbody></table></div>\n");
  if (left_out_ != 0)
    out += Html::markup("<p>") + Html::number(left_out_) + " more are not shown; `gpuwire top` has them." +
           Html::markup("</p>\n");
  return out;
}

}  // namespace gpuwire::server::web
