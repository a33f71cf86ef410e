// Makes text from a peer, and quotes of it, safe for a terminal, a list or a log.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/wire/utf8.hpp"

namespace gpuwire::wire {

struct CharacterRange {
  char32_t first, last;
};
// Characters that are invisible or change the display of their neighbours (Unicode 14), in order: the categories
// control, format, surrogate and private use; separators except the blank; all characters with a class of bidirectional
// control (UAX 9); all that are ignored or empty in a display (UAX 44, Default_Ignorable_Code_Point; fillers); and
// noncharacters.
inline constexpr CharacterRange kUnshown[] = {
    {0x0000, 0x001f},   {0x007f, 0x00a0},   {0x00ad, 0x00ad},   {0x034f, 0x034f},   {0x0600, 0x0605},
    {0x061c, 0x061c},   {0x06dd, 0x06dd},   {0x070f, 0x070f},   {0x0890, 0x0891},   {0x08e2, 0x08e2},
    {0x115f, 0x1160},   {0x1680, 0x1680},   {0x17b4, 0x17b5},   {0x180b, 0x180f},   {0x2000, 0x200f},
    {0x2028, 0x202f},   {0x205f, 0x206f},   {0x2800, 0x2800},   {0x3000, 0x3000},   {0x3164, 0x3164},
    {0xd800, 0xf8ff},   {0xfdd0, 0xfdef},   {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0},
    {0xfff9, 0xfffb},   {0xfffe, 0xffff},   {0x110bd, 0x110bd}, {0x110cd, 0x110cd}, {0x13430, 0x13438},
    {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0x1fffe, 0x1ffff}, {0x2fffe, 0x2ffff}, {0x3fffe, 0x3ffff},
    {0x4fffe, 0x4ffff}, {0x5fffe, 0x5ffff}, {0x6fffe, 0x6ffff}, {0x7fffe, 0x7ffff}, {0x8fffe, 0x8ffff},
    {0x9fffe, 0x9ffff}, {0xafffe, 0xaffff}, {0xbfffe, 0xbffff}, {0xcfffe, 0xcffff}, {0xdfffe, 0xe0fff},
    {0xefffe, 0x10ffff}};

inline bool is_shown(char32_t character) noexcept {
  const auto* range = std::lower_bound(std::begin(kUnshown), std::end(kUnshown), character,
                                       [](const CharacterRange& one, char32_t c) { return one.last < c; });
  return range == std::end(kUnshown) || character < range->first;
}

struct Piece {
  // At least one.
  size_t bytes;
  // False: not valid UTF-8, or a character of kUnshown.
  bool shown;
};
// Returns the character at the beginning of the text. Precondition: the text is not empty.
inline Piece next_piece(std::string_view text) noexcept {
  const size_t bytes = utf8_length(text);
  if (bytes == 0) return {1, false};
  const auto first = uint8_t(text[0]);
  char32_t character = bytes == 1 ? first : first & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) character = character << 6 | (uint8_t(text[i]) & 0x3fu);
  return {bytes, is_shown(character)};
}

// Makes the text one line without invisible characters: a blank replaces each byte of such a character.
inline void blank_unshown(char* text, size_t bytes) noexcept {
  for (size_t at = 0; at < bytes;) {
    const Piece piece = next_piece({text + at, bytes - at});
    if (!piece.shown) std::fill_n(text + at, piece.bytes, ' ');
    at += piece.bytes;
  }
}
inline void blank_unshown(std::string& text) noexcept { blank_unshown(text.data(), text.size()); }

// Text from a peer. The constructor applies blank_unshown(), so the text can be read only in its safe form.
class ForeignText {
 public:
  ForeignText() = default;
  ForeignText(std::string text) : text_(std::move(text)) {
    blank_unshown(text_);
  }                                                                  // NOLINT(google-explicit-constructor)
  ForeignText(const char* text) : ForeignText(std::string(text)) {}  // NOLINT(google-explicit-constructor)

  const std::string& str() const noexcept { return text_; }
  const char* c_str() const noexcept { return text_.c_str(); }
  size_t size() const noexcept { return text_.size(); }
  bool empty() const noexcept { return text_.empty(); }
  operator const std::string&() const noexcept { return text_; }  // NOLINT(google-explicit-constructor)

  friend bool operator==(const ForeignText& a, std::string_view b) noexcept { return a.text_ == b; }
  friend std::string operator+(const ForeignText& a, std::string_view b) { return a.text_ + std::string(b); }
  friend std::string operator+(std::string_view a, const ForeignText& b) { return std::string(a) + b.text_; }

 private:
  std::string text_;
};

}  // namespace gpuwire::wire
