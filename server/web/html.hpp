// Html is HTML in which foreign text cannot be markup: the type of an added part decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::server::web {

// A value type. Everything but literals of the source code is text: its control, formatting and direction characters
// become \xNN (`escaped` of ../log), and its markup characters entities, so that it is safe in an element and in a
// quoted attribute.
class Html {
 public:
  Html() = default;
  Html(std::string_view text);  // NOLINT(google-explicit-constructor): text is the safe reading
  Html(const std::string& text) : Html(std::string_view(text)) {}  // NOLINT(google-explicit-constructor)
  Html(const char* text) : Html(std::string_view(text)) {}         // NOLINT(google-explicit-constructor)
  // Markup of the source code.
  template <size_t N>
  static Html markup(const char (&literal)[N]) {
    Html html;
    html.text_.assign(literal, N - 1);
    return html;
  }
  static Html number(uint64_t value);

  Html& operator+=(const Html& more) {
    text_ += more.text_;
    return *this;
  }
  friend Html operator+(Html one, const Html& more) { return one += more; }
  const std::string& str() const { return text_; }
  bool empty() const { return text_.empty(); }

 private:
  std::string text_;
};

// A table for eyes and screen readers: a caption, headings with their scope, the first cell of a row as its heading. On
// a narrow screen it scrolls by itself, also by keyboard.
class Table {
 public:
  struct Column {
    const char* heading;
    bool number = false;
    // Its cells may be several lines.
    bool sentence = false;
  };
  Table(const char* caption, std::vector<Column> columns) : caption_(caption), columns_(std::move(columns)) {}

  // One cell for each column. Rows beyond kRowsMax are only counted.
  void add(std::vector<Html> cells);
  bool empty() const { return rows_.empty(); }
  // `when_empty`: the text in place of a table without rows.
  Html html(const char* when_empty) const;

 private:
  const char* caption_;
  std::vector<Column> columns_;
  std::vector<std::vector<Html>> rows_;
  size_t left_out_ = 0;
};

}  // namespace gpuwire::server::web
