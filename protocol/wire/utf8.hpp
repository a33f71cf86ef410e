// Checks UTF-8 (RFC 3629) in text that goes to a consumer which accepts nothing else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace gpuwire::wire {

// Returns the length of the valid sequence at the beginning of `text`, or 0 if there is none. Precondition: `text` is
// not empty.
inline size_t utf8_length(std::string_view text) noexcept {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return 1;
  const size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  // Overlong sequences, surrogates, and values past the last character.
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) || (first == 0xf0 && second < 0x90) ||
      (first == 0xf4 && second > 0x8f))
    return 0;
  return length;
}

// Returns the line, counted from 1, in which invalid UTF-8 begins; 0: the text is valid.
inline size_t line_without_utf8(std::string_view text) noexcept {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text.substr(at));
    if (length == 0) return 1 + size_t(std::count(text.begin(), text.begin() + std::ptrdiff_t(at), '\n'));
    at += length;
  }
  return 0;
}

}  // namespace gpuwire::wire
