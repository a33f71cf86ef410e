#include "protocol/resume/proof.hpp"

#include <string>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "protocol/tls/openssl.hpp"

namespace gpuwire::resume {

namespace {

constexpr std::string_view kLabel = "gpuwire resume 1", kLaneLabel = "gpuwire lane 1";

template <size_t size>
std::string_view text_of(const std::array<uint8_t, size>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), size};
}

std::string said_of(std::string_view label, const Challenge& challenge, const SessionId& session, uint64_t attempt) {
  std::string said(label);
  said.append(text_of(challenge)).append(text_of(session));
  for (int shift = 0; shift < 64; shift += 8) said.push_back(char(attempt >> shift));
  return said;
}

Proof authenticate(const Secret& secret, const std::string& said) {
  Proof proof{};
  unsigned bytes = 0;
  tls::ForkSafe fork_safe;
  HMAC(EVP_sha256(), secret.data(), int(secret.size()), reinterpret_cast<const unsigned char*>(said.data()),
       said.size(), proof.data(), &bytes);
  return proof;
}

}  // namespace

Proof proof_of(const Secret& secret, const Challenge& challenge, std::string_view binding, const SessionId& session,
               uint64_t attempt) {
  return authenticate(secret, said_of(kLabel, challenge, session, attempt).append(binding));
}

Proof lane_proof_of(const Secret& secret, const Challenge& challenge, std::string_view binding,
                    const SessionId& session, uint64_t attempt, const Lane& lane) {
  std::string said = said_of(kLaneLabel, challenge, session, attempt);
  for (int shift = 0; shift < 32; shift += 8) said.push_back(char(lane.set >> shift));
  said.push_back(char(lane.number));
  said.push_back(char(lane.count));
  return authenticate(secret, said.append(binding));
}

bool same(const Proof& one, const Proof& other) { return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0; }

}  // namespace gpuwire::resume
