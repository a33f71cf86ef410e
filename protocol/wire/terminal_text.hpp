// What a peer has written, or what quotes it, on its way to a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpuwire::wire {

// Leaves one line that moves no cursor: a blank takes the place of each control character, those from U+0080 to U+009F
// included, which UTF-8 writes as two bytes.
inline void blank_controls(std::string& text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = uint8_t(text[i]);
    if (byte < 0x20 || byte == 0x7f) text[i] = ' ';
    if (byte != 0xc2 || i + 1 == text.size()) continue;
    const auto second = uint8_t(text[i + 1]);
    if (second >= 0x80 && second < 0xa0) text[i] = text[i + 1] = ' ';
  }
}

}  // namespace gpuwire::wire
