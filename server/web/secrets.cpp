#include "server/web/secrets.hpp"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <span>

#include <sys/random.h>

#include "protocol/digest/blake3.hpp"

namespace gpuwire::server::web {
namespace {

std::string hexadecimal(std::span<const uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

std::string random_text() {
  std::array<uint8_t, 32> bytes;
  for (size_t filled = 0; filled < bytes.size();) {
    const ssize_t got = ::getrandom(bytes.data() + filled, bytes.size() - filled, 0);
    if (got < 0 && errno != EINTR) std::abort();
    if (got > 0) filled += size_t(got);
  }
  return hexadecimal(bytes);
}

std::string csrf_of(std::string_view cookie) {
  const std::string text = "gpuwire form\n" + std::string(cookie);
  return hexadecimal(digest::blake3(std::as_bytes(std::span(text))));
}

bool is_csrf_of(std::string_view cookie, std::string_view shown) {
  const std::string expected = csrf_of(cookie);
  if (cookie.empty() || shown.size() != expected.size()) return false;
  unsigned different = 0;
  for (size_t i = 0; i < expected.size(); ++i) different |= unsigned(expected[i] ^ shown[i]);
  return different == 0;
}

}  // namespace gpuwire::server::web
