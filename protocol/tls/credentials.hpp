// The files of a client's credentials and of the authorities that it trusts. docs/security.md has their format.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "protocol/tls/openssl.hpp"

namespace gpuwire::tls {

inline constexpr size_t kCredentialBytesMax = 256u << 10;  // of a file
inline constexpr size_t kTokenBytesMin = 16, kTokenBytesMax = 512;

// A client's credentials and its trusted authorities. Move-only.
struct Credentials {
  // Set together with `key`, or not at all if the client identifies itself by a token.
  Certificate certificate;
  PrivateKey key;
  // Only these authorities' signatures on a server's certificate are accepted.
  std::vector<Certificate> authorities;
  // The file, for error texts.
  std::string authorities_from;
};

// The errors of all of these functions are one line that names the file and the remedy.

// Reads a bundle: private key, the client's certificate, certificates of authorities. Refuses a file that others than
// the owner may read.
tl::expected<Credentials, std::string> read_identity(const std::filesystem::path& file);
// Reads certificates of authorities, which may be readable by all, and replaces those in `credentials`.
tl::expected<void, std::string> read_authorities(const std::filesystem::path& file, Credentials& credentials);
// Reads a token: the first line that is neither empty nor a comment (#). Refuses a file that others than the owner may
// read.
tl::expected<std::string, std::string> read_token(const std::filesystem::path& file);

}  // namespace gpuwire::tls
