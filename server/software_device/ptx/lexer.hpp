// Splits PTX text into tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::software_device::ptx {

enum class TokenKind : uint8_t {
  end,
  identifier,   // add, %r1, $L__BB0_1, _Z3foov
  dot_word,     // .u32, .L2::128B: text without the dot
  integer,      // integer_value; 64 bits, PTX ISA 4.5.1
  real,         // real_value; for 0fXXXXXXXX, single_exact is set and integer_value has the f32's bits
  string,       // text without the quotes
  punctuation,  // one of the bytes in `text`
};

struct Token {
  TokenKind kind = TokenKind::end;
  bool single_exact = false;
  bool is_unsigned = false;  // integer: has the suffix U
  uint32_t line = 0;
  std::string_view text;
  uint64_t integer_value = 0;
  double real_value = 0;

  bool is(char punctuation_mark) const {
    return kind == TokenKind::punctuation && text.size() == 1 && text[0] == punctuation_mark;
  }
  bool is_dot(std::string_view word) const { return kind == TokenKind::dot_word && text == word; }
  bool is_word(std::string_view word) const { return kind == TokenKind::identifier && text == word; }
};

struct LexError {
  uint32_t line = 0;
  std::string message;
};

// Returns one token at a time, with a look-ahead of one token. The text must outlive the tokens, which point into it.
class Lexer {
 public:
  explicit Lexer(std::string_view text);

  const Token& peek() const { return current_; }
  const Token& peek_second();
  Token take();
  bool failed() const { return !error_.message.empty(); }
  const LexError& error() const { return error_; }

 private:
  Token scan();
  bool skip_blanks();
  Token scan_number(Token token);
  Token scan_hex_real(Token token, unsigned digits);
  Token fail(Token token, std::string message);

  std::string_view text_;
  size_t position_ = 0;
  uint32_t line_ = 1;
  Token current_;
  Token second_;
  bool has_second_ = false;
  LexError error_;
};

}  // namespace gpuwire::software_device::ptx
