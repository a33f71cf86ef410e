#include "protocol/fatbin/ptx_lexer.hpp"

#include <algorithm>
#include <charconv>

namespace gpuwire::fatbin {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_part(char c) { return is_letter(c) || is_digit(c) || c == '_' || c == '$'; }

}  // namespace

PtxToken PtxLexer::next() {
  if (!skip_blanks()) return {};
  const char first = rest_.front();
  if (is_letter(first) || first == '_' || first == '$' || first == '%')
    return take(PtxToken::Kind::word, word_length(1));
  if (is_digit(first)) return take(PtxToken::Kind::number, word_length(1));
  if (first == '.' && rest_.size() > 1 && is_part(rest_[1])) return take(PtxToken::Kind::dotted, dotted_length());
  if (first == '"') return take(PtxToken::Kind::text, std::min(rest_.find('"', 1), rest_.size() - 1) + 1);
  return take(PtxToken::Kind::symbol, 1);
}

PtxToken PtxLexer::take(PtxToken::Kind kind, size_t length) {
  PtxToken token{kind, rest_.substr(0, length)};
  rest_.remove_prefix(token.text.size());
  return token;
}

void PtxLexer::skip_to(size_t end) { rest_.remove_prefix(std::min(end, rest_.size())); }

bool PtxLexer::skip_blanks() {
  for (;;) {
    skip_to(rest_.find_first_not_of(" \t\r\n\f\v"));
    if (rest_.starts_with("//")) {
      skip_to(rest_.find('\n'));
    } else if (rest_.starts_with("/*")) {
      size_t end = rest_.find("*/", 2);
      skip_to(end == std::string_view::npos ? end : end + 2);
    } else {
      return !rest_.empty();
    }
  }
}

size_t PtxLexer::word_length(size_t length) const {
  while (length < rest_.size() && is_part(rest_[length])) ++length;
  return length;
}

size_t PtxLexer::dotted_length() const {
  size_t length = word_length(1);
  while (length + 2 < rest_.size() && rest_[length] == ':' && rest_[length + 1] == ':' && is_part(rest_[length + 2]))
    length = word_length(length + 2);
  return length;
}

std::optional<uint64_t> ptx_number(std::string_view text) {
  if (text.ends_with('U')) text.remove_suffix(1);
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0X")) base = 16;
  else if (text.starts_with("0b") || text.starts_with("0B")) base = 2;
  else if (text.size() > 1 && text.front() == '0') base = 8;
  if (base == 16 || base == 2) text.remove_prefix(2);
  uint64_t value = 0;
  auto read = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || read.ptr != text.data() + text.size()) return std::nullopt;
  return read.ec == std::errc::result_out_of_range ? UINT64_MAX : value;
}

std::optional<PtxType> ptx_type(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_of("0123456789"), word.size()));
  const char* const end = word.data() + word.size();
  PtxType type;
  auto read = std::from_chars(word.data(), end, type.bits);
  if (read.ec == std::errc() && read.ptr != end && *read.ptr == 'x')
    read = std::from_chars(read.ptr + 1, end, type.count);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return type;
}

}  // namespace gpuwire::fatbin
