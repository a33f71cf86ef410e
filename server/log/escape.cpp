#include "server/log/escape.hpp"

#include <cstddef>
#include <cstdint>

namespace gpuwire::server {
namespace {

void append_escaped(std::string& out, unsigned char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  out += "\\x";
  out += kDigits[byte >> 4];
  out += kDigits[byte & 15];
}

// How many bytes the well-formed UTF-8 sequence at the start of `text` has; 0: there is none (RFC 3629, section 4).
size_t sequence_bytes(std::string_view text) {
  auto byte = [&](size_t i) { return i < text.size() ? uint8_t(text[i]) : uint8_t(0); };
  auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  uint8_t first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    bool overlong = first == 0xe0 && second < 0xa0, surrogate = first == 0xed && second > 0x9f;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    bool overlong = first == 0xf0 && second < 0x90, beyond = first == 0xf4 && second > 0x8f;
    return follows(1) && follows(2) && follows(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

bool is_control(std::string_view sequence) {
  uint8_t first = uint8_t(sequence[0]);
  return first < 0x20 || first == 0x7f || (first == 0xc2 && uint8_t(sequence[1]) < 0xa0);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    size_t bytes = sequence_bytes(text);
    if (bytes != 0 && !is_control(text.substr(0, bytes))) {
      out += text.substr(0, bytes);
    } else {
      bytes = bytes == 0 ? 1 : bytes;
      for (char byte : text.substr(0, bytes)) append_escaped(out, uint8_t(byte));
    }
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace gpuwire::server
