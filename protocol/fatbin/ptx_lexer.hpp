// The tokens of a PTX text, as ptxas (CUDA 13.0) reads them. Takes hostile bytes: every text has tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace gpuwire::fatbin {

struct PtxToken {
  enum class Kind : uint8_t { end, word, dotted, number, text, symbol };
  Kind kind = Kind::end;
  std::string_view text;

  bool is(char symbol) const { return kind == Kind::symbol && text.front() == symbol; }
  bool is_word() const { return kind == Kind::word; }
  bool is_dotted() const { return kind == Kind::dotted; }
};

// A comment ends only at a line feed, or at the first */; an unfinished one hides the remaining text; a text in quotes
// has no escapes, and may span lines. The tokens point into the text.
class PtxLexer {
 public:
  explicit PtxLexer(std::string_view text) : rest_(text) {}

  size_t left() const { return rest_.size(); }
  PtxToken next();

 private:
  PtxToken take(PtxToken::Kind kind, size_t length);
  void skip_to(size_t end);
  // False: nothing is left.
  bool skip_blanks();
  size_t word_length(size_t length) const;
  // With the word behind a double colon: ".shared::cta".
  size_t dotted_length() const;

  std::string_view rest_;
};

// Octal, binary, decimal or hexadecimal, perhaps with U; a number that is too large is UINT64_MAX. None: no whole
// number.
std::optional<uint64_t> ptx_number(std::string_view text);

// A fundamental type: ".b8" is 8 bits once, ".f16x2" 16 bits twice. How large each may be is its reader's to bound.
struct PtxType {
  uint64_t bits = 0, count = 1;
};
// None: a type that says no size (".texref"), or no type at all.
std::optional<PtxType> ptx_type(std::string_view word);

}  // namespace gpuwire::fatbin
