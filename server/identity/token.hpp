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

// "gpuwire_" and 43 characters. The error: the system has no randomness.
tl::expected<std::string, std::string> new_token();
// Of any text; a text that cannot be a token has a hash that no token has.
TokenHash hash_token(std::string_view token);
// By which a token is spoken about: 16 hexadecimal digits, the beginning of its hash.
std::string token_id(const TokenHash& hash);

std::string to_hex(const TokenHash& hash);
bool from_hex(std::string_view text, TokenHash& hash);
// Takes the same time wherever they differ.
bool same_hash(const TokenHash& one, const TokenHash& other);

}  // namespace gpuwire::server
