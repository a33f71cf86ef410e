#include "server/module_cache/digest.hpp"

#include <openssl/evp.h>

#include <stdexcept>

namespace gpuwire::server {

Digest sha256(std::span<const std::byte> bytes) {
  Digest digest{};
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1 ||
      size != digest.size()) {
    throw std::runtime_error("libcrypto has no SHA-256");
  }
  return digest;
}

std::string hex(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace gpuwire::server
