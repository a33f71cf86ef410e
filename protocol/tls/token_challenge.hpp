// The proof of a token over a connection without TLS, whose other end is not authenticated. The server first proves
// that it knows the token's hash, and only a peer that knows the hash can read the client's answer. The hash alone does
// not prove the token. docs/wire_protocol.md specifies the messages.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpuwire::tls {

inline constexpr size_t kTokenNonceBytes = 32, kTokenProofBytes = 32;

using TokenHash = std::array<uint8_t, 32>;  // SHA-256: a server stores nothing else of a token
using TokenNonce = std::array<uint8_t, kTokenNonceBytes>;
using TokenProof = std::array<uint8_t, kTokenProofBytes>;

// Random bytes of both ends, new for each connection.
struct TokenChallenge {
  TokenNonce client{}, server{};
};

TokenHash token_hash(std::string_view token);
// Returns the name of a token: 16 hexadecimal digits, the beginning of its hash.
std::string token_name(const TokenHash& hash);
// Returns nothing if the system has no random bytes.
std::optional<TokenNonce> new_token_nonce();
// Returns the server's proof that it knows the hash.
TokenProof token_proof(const TokenHash& hash, const TokenChallenge& challenge);
// Compares in constant time.
bool same(const TokenProof& one, const TokenProof& other);
// Return the sealed form of the token, and the token of a sealed form.
std::string sealed_token(const TokenHash& hash, const TokenChallenge& challenge, std::string_view token);

}  // namespace gpuwire::tls
