#include "server/log/escape.hpp"

#include <cstdint>

#include "protocol/wire/terminal_text.hpp"

namespace gpuwire::server {
namespace {

void append_escaped(std::string& out, unsigned char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  out += "\\x";
  out += kDigits[byte >> 4];
  out += kDigits[byte & 15];
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const wire::Piece piece = wire::next_piece(text);
    const std::string_view bytes = text.substr(0, piece.bytes);
    if (piece.shown) out += bytes;
    else
      for (char byte : bytes) append_escaped(out, uint8_t(byte));
    text.remove_prefix(piece.bytes);
  }
  return out;
}

}  // namespace gpuwire::server
