#include "protocol/resume/proof.hpp"

#include <string>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "protocol/tls/openssl.hpp"

namespace gpuwire::resume {

namespace {

constexpr std::string_view kLabel = "gpuwire resume 1";

template <size_t size>
std::string_view text_of(const std::array<uint8_t, size>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), size};
}

}  // namespace

Proof proof_of(const Secret& secret, const Challenge& challenge, std::string_view binding, const SessionId& session, uint64_t attempt) {
  std::string said(kLabel);
  said.append(text_of(challenge)).append(text_of(session));
  for (int shift = 0; shift < 64; shift += 8) said.push_back(char(attempt >> shift));
  said.append(binding);
  Proof proof{};
  unsigned bytes = 0;
  tls::ForkSafe fork_safe;
  HMAC(EVP_sha256(), secret.data(), int(secret.size()), reinterpret_cast<const unsigned char*>(said.data()), said.size(), proof.data(), &bytes);
  return proof;
}

bool same(const Proof& one, const Proof& other) { return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0; }

}  // namespace gpuwire::resume
