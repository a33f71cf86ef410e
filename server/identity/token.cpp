#include "server/identity/token.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

namespace gpuwire::server {
namespace {

constexpr size_t kIdDigits = 16;

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

tl::expected<std::string, std::string> new_token() {
  static constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::array<uint8_t, 32> secret{};
  if (RAND_priv_bytes(secret.data(), int(secret.size())) != 1)
    return tl::unexpected(std::string("no random bytes for a token"));
  std::string token(kTokenPrefix);
  uint32_t bits = 0;
  unsigned held = 0;
  for (uint8_t byte : secret) {
    bits = bits << 8 | byte;
    for (held += 8; held >= 6; held -= 6) token += kAlphabet[bits >> (held - 6) & 63];
  }
  token += kAlphabet[bits << (6 - held) & 63];
  OPENSSL_cleanse(secret.data(), secret.size());
  return token;
}

TokenHash hash_token(std::string_view token) {
  TokenHash hash{};
  unsigned size = 0;
  EVP_Digest(token.data(), token.size(), hash.data(), &size, EVP_sha256(), nullptr);
  return hash;
}

std::string token_id(const TokenHash& hash) { return to_hex(hash).substr(0, kIdDigits); }

std::string to_hex(const TokenHash& hash) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : hash) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool from_hex(std::string_view text, TokenHash& hash) {
  if (text.size() != 2 * hash.size()) return false;
  for (size_t i = 0; i < hash.size(); ++i) {
    int high = digit_value(text[2 * i]), low = digit_value(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    hash[i] = uint8_t(high << 4 | low);
  }
  return true;
}

bool same_hash(const TokenHash& one, const TokenHash& other) {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace gpuwire::server
