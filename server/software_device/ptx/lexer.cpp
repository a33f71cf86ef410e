#include "server/software_device/ptx/lexer.hpp"

#include <bit>
#include <charconv>
#include <cstring>

namespace gpuwire::software_device::ptx {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word_byte(char c) { return is_digit(c) || is_letter(c) || c == '_' || c == '$'; }

int digit_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

}  // namespace

Lexer::Lexer(std::string_view text) : text_(text) { current_ = scan(); }

const Token& Lexer::peek_second() {
  if (!has_second_) {
    second_ = scan();
    has_second_ = true;
  }
  return second_;
}

Token Lexer::take() {
  Token taken = current_;
  if (has_second_) {
    current_ = second_;
    has_second_ = false;
  } else {
    current_ = scan();
  }
  return taken;
}

Token Lexer::fail(Token token, std::string message) {
  if (!failed()) error_ = {line_, std::move(message)};
  position_ = text_.size();
  token.kind = TokenKind::end;
  return token;
}

// Skips blanks, both kinds of comment, and the NUL bytes that pad PTX in some images. Returns false if a comment does
// not end.
bool Lexer::skip_blanks() {
  while (position_ < text_.size()) {
    char c = text_[position_];
    if (c == '\n') {
      ++line_;
      ++position_;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v' || c == '\0') {
      ++position_;
    } else if (c == '#' || text_.compare(position_, 2, "//") == 0) {
      size_t end = text_.find('\n', position_);
      position_ = end == std::string_view::npos ? text_.size() : end;
    } else if (text_.compare(position_, 2, "/*") == 0) {
      size_t end = text_.find("*/", position_ + 2);
      if (end == std::string_view::npos) return false;
      for (; position_ < end; ++position_) line_ += text_[position_] == '\n';
      position_ = end + 2;
    } else {
      break;
    }
  }
  return true;
}

Token Lexer::scan() {
  Token token;
  if (!skip_blanks()) return fail(token, "comment without an end");
  token.line = line_;
  if (position_ >= text_.size()) return token;
  size_t begin = position_;
  char c = text_[begin];
  auto byte_at = [&](size_t at) { return at < text_.size() ? text_[at] : '\0'; };
  if (is_digit(c)) return scan_number(token);
  if (is_letter(c) || c == '_' || c == '$' || c == '%') {
    ++position_;
    while (is_word_byte(byte_at(position_))) ++position_;
    token.kind = (position_ - begin == 1 && c == '%') ? TokenKind::punctuation : TokenKind::identifier;
    token.text = text_.substr(begin, position_ - begin);
    return token;
  }
  if (c == '.' && is_word_byte(byte_at(begin + 1))) {
    position_ = begin + 1;
    while (is_word_byte(byte_at(position_)) || (byte_at(position_) == ':' && byte_at(position_ + 1) == ':')) {
      position_ += byte_at(position_) == ':' ? 2 : 1;
    }
    token.kind = TokenKind::dot_word;
    token.text = text_.substr(begin + 1, position_ - begin - 1);
    return token;
  }
  if (c == '"') {
    size_t end = text_.find('"', begin + 1);
    if (end == std::string_view::npos) return fail(token, "string without an end");
    token.kind = TokenKind::string;
    token.text = text_.substr(begin + 1, end - begin - 1);
    for (char inner : token.text) line_ += inner == '\n';
    position_ = end + 1;
    return token;
  }
  ++position_;
  token.kind = TokenKind::punctuation;
  token.text = text_.substr(begin, 1);
  if (std::strchr("()[]{}<>,;:=|!+-*/&^~@?", c) == nullptr) return fail(token, "unexpected byte in the text");
  return token;
}

Token Lexer::scan_hex_real(Token token, unsigned digits) {
  uint64_t bits = 0;
  position_ += 2;
  for (unsigned i = 0; i < digits; ++i, ++position_) {
    int digit = position_ < text_.size() ? digit_value(text_[position_]) : 99;
    if (digit > 15) return fail(token, "floating-point constant is too short");
    bits = bits << 4 | static_cast<unsigned>(digit);
  }
  token.kind = TokenKind::real;
  token.integer_value = bits;
  token.single_exact = digits == 8;
  token.real_value = digits == 8 ? std::bit_cast<float>(static_cast<uint32_t>(bits)) : std::bit_cast<double>(bits);
  return token;
}

// PTX ISA 4.5: decimal, 0x, 0b and octal integers with an optional U; 0f and 0d bit patterns; decimal reals.
Token Lexer::scan_number(Token token) {
  size_t begin = position_;
  auto byte_at = [&](size_t at) { return at < text_.size() ? text_[at] : '\0'; };
  char second = byte_at(begin + 1);
  if (text_[begin] == '0') {
    if (second == 'f' || second == 'F') return scan_hex_real(token, 8);
    if (second == 'd' || second == 'D') return scan_hex_real(token, 16);
  }
  int radix = 10;
  if (text_[begin] == '0') {
    if (second == 'x' || second == 'X') radix = 16;
    else if (second == 'b' || second == 'B') radix = 2;
    else if (is_digit(second)) radix = 8;
  }
  if (radix == 10) {
    size_t end = begin;
    while (is_digit(byte_at(end))) ++end;
    bool real = byte_at(end) == '.' && is_digit(byte_at(end + 1));
    real = real || (byte_at(end) == '.' && !is_word_byte(byte_at(end + 1)));
    real = real || byte_at(end) == 'e' || byte_at(end) == 'E';
    if (real) {
      auto [stop, status] = std::from_chars(text_.data() + begin, text_.data() + text_.size(), token.real_value);
      if (status == std::errc::invalid_argument) return fail(token, "malformed floating-point constant");
      position_ = static_cast<size_t>(stop - text_.data());
      if (byte_at(position_) == '.') ++position_;
      token.kind = TokenKind::real;
      token.integer_value = std::bit_cast<uint64_t>(token.real_value);
      return token;
    }
  }
  if (radix == 16 || radix == 2) position_ += 2;
  size_t first_digit = position_;
  uint64_t value = 0;
  for (; digit_value(byte_at(position_)) < radix; ++position_) {
    value = value * static_cast<unsigned>(radix) + static_cast<unsigned>(digit_value(byte_at(position_)));
  }
  if (position_ == first_digit) return fail(token, "malformed integer constant");
  if (byte_at(position_) == 'U' || byte_at(position_) == 'u') {
    token.is_unsigned = true;
    ++position_;
  }
  if (is_word_byte(byte_at(position_))) return fail(token, "malformed integer constant");
  token.kind = TokenKind::integer;
  token.integer_value = value;
  return token;
}

}  // namespace gpuwire::software_device::ptx
