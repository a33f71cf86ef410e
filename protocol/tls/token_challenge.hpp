// The proof of a token over a connection without TLS, whose other end may be anybody. The server first proves that it
// knows the token's hash; only a peer that knows the hash can read the client's answer. The hash by itself is no proof
// of the token. docs/wire_protocol.md specifies the messages.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpuwire::tls {

inline constexpr size_t kTokenNonceBytes = 32, kTokenProofBytes = 32;

using TokenHash = std::array<uint8_t, 32>;  // SHA-256: all that a server keeps of a token
using TokenNonce = std::array<uint8_t, kTokenNonceBytes>;
using TokenProof = std::array<uint8_t, kTokenProofBytes>;

// Random bytes of both ends, new for each connection.
struct TokenChallenge {
  TokenNonce client{}, server{};
};

TokenHash token_hash(std::string_view token);
// By which a token is named: 16 hexadecimal digits, the beginning of its hash.
std::string token_name(const TokenHash& hash);
// None: the system has no randomness.
std::optional<TokenNonce> new_token_nonce();
// The server's, by which it shows that it knows the hash.
TokenProof token_proof(const TokenHash& hash, const TokenChallenge& challenge);
// Takes as long whatever differs.
bool same(const TokenProof& one, const TokenProof& other);
// The sealed form of the token; and the token of a sealed form.
std::string sealed_token(const TokenHash& hash, const TokenChallenge& challenge, std::string_view token);

}  // namespace gpuwire::tls
