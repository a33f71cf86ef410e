// Bearer tokens: 256 random bits as text. The server stores the SHA-256 of a token. Nobody can try 2^256 inputs, so a
// salt and a slow function, which protect passwords, would add nothing but a way to keep the server busy.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

namespace gpuwire::server {

using TokenHash = std::array<uint8_t, 32>;

inline constexpr std::string_view kTokenPrefix = "gpuwire_";
inline constexpr size_t kTokenBytes = kTokenPrefix.size() + 43;  // 32 bytes in base64url, without padding

// Makes a token: "gpuwire_" and 43 characters. The error: the system provides no random bytes.
tl::expected<std::string, std::string> new_token();
// Hashes any text; a text that is no token has a hash that no token has.
TokenHash hash_token(std::string_view token);
// Returns a token's name in messages: the first 16 hexadecimal digits of its hash.
std::string token_id(const TokenHash& hash);

std::string to_hex(const TokenHash& hash);
bool from_hex(std::string_view text, TokenHash& hash);
// Compares in constant time.
bool same_hash(const TokenHash& one, const TokenHash& other);

}  // namespace gpuwire::server
