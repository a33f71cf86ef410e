#include "protocol/tls/token_challenge.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "protocol/tls/openssl.hpp"

namespace gpuwire::tls {
namespace {

constexpr std::string_view kProofLabel = "gpuwire token server 1", kSealLabel = "gpuwire token seal 1";
constexpr size_t kNameBytes = 8;

TokenProof authenticate(const TokenHash& hash, std::string_view label, const TokenChallenge& challenge,
                        uint32_t number) {
  std::string said(label);
  for (const TokenNonce* nonce : {&challenge.client, &challenge.server})
    said.append(reinterpret_cast<const char*>(nonce->data()), nonce->size());
  for (int shift = 0; shift < 32; shift += 8) said.push_back(char(number >> shift));
  TokenProof proof{};
  unsigned bytes = 0;
  HMAC(EVP_sha256(), hash.data(), int(hash.size()), reinterpret_cast<const unsigned char*>(said.data()), said.size(),
       proof.data(), &bytes);
  return proof;
}

}  // namespace

TokenHash token_hash(std::string_view token) {
  start_openssl();
  ForkSafe fork_safe;
  TokenHash hash{};
  unsigned bytes = 0;
  EVP_Digest(token.data(), token.size(), hash.data(), &bytes, EVP_sha256(), nullptr);
  return hash;
}

std::string token_name(const TokenHash& hash) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string name;
  for (size_t i = 0; i < kNameBytes; ++i) {
    name += kDigits[hash[i] >> 4];
    name += kDigits[hash[i] & 15];
  }
  return name;
}

std::optional<TokenNonce> new_token_nonce() {
  start_openssl();
  ForkSafe fork_safe;
  TokenNonce nonce{};
  if (RAND_bytes(nonce.data(), int(nonce.size())) != 1) return std::nullopt;
  return nonce;
}

TokenProof token_proof(const TokenHash& hash, const TokenChallenge& challenge) {
  start_openssl();
  ForkSafe fork_safe;
  return authenticate(hash, kProofLabel, challenge, 0);
}

bool same(const TokenProof& one, const TokenProof& other) {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

std::string sealed_token(const TokenHash& hash, const TokenChallenge& challenge, std::string_view token) {
  start_openssl();
  ForkSafe fork_safe;
  std::string sealed(token);
  TokenProof stream{};
  for (size_t i = 0; i < sealed.size(); ++i) {
    if (i % stream.size() == 0) stream = authenticate(hash, kSealLabel, challenge, uint32_t(i / stream.size()));
    sealed[i] = char(uint8_t(sealed[i]) ^ stream[i % stream.size()]);
  }
  return sealed;
}

}  // namespace gpuwire::tls
