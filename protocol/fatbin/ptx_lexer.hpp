// Splits a PTX text into tokens like ptxas (CUDA 13.0). Accepts hostile bytes: every text has tokens.
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

// A comment ends only at a line feed, or at the first */. An unfinished comment extends to the end of the text. A
// quoted text has no escapes and may contain line feeds. The tokens point into the text.
class PtxLexer {
 public:
  explicit PtxLexer(std::string_view text) : rest_(text) {}

  size_t left() const { return rest_.size(); }
  PtxToken next();

 private:
  PtxToken take(PtxToken::Kind kind, size_t length);
  void skip_to(size_t end);
  // Returns false if the text has ended.
  bool skip_blanks();
  size_t word_length(size_t length) const;
  // Returns the length of a dotted word, including the word behind a double colon: ".shared::cta".
  size_t dotted_length() const;

  std::string_view rest_;
};

// Parses an octal, binary, decimal or hexadecimal number, optionally with U. A number that is too large is UINT64_MAX.
// Returns nothing if the text is not an integer.
std::optional<uint64_t> ptx_number(std::string_view text);

// A fundamental type: ".b8" is 8 bits once, ".f16x2" 16 bits twice. Callers check the bounds of both values.
struct PtxType {
  uint64_t bits = 0, count = 1;
};
// Returns nothing for a type without a size (".texref"), and for a word that is not a type.
std::optional<PtxType> ptx_type(std::string_view word);

}  // namespace gpuwire::fatbin
