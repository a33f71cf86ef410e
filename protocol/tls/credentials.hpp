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
  Certificate certificate;  // with `key`, or neither: a client that names itself by a token
  PrivateKey key;
  std::vector<Certificate> authorities;  // whose signature on a server's certificate counts; nobody else's does
  std::string authorities_from;          // the file, for error texts
};

// Errors of all of these are one line that names the file and the remedy.

// A bundle: private key, the client's certificate, certificates of authorities. Refused when others than the owner may
// read it.
tl::expected<Credentials, std::string> read_identity(const std::filesystem::path& file);
// Certificates of authorities, which anybody may read; they replace those in `credentials`.
tl::expected<void, std::string> read_authorities(const std::filesystem::path& file, Credentials& credentials);
// A token: the first line that is neither empty nor a comment (#). Refused when others than the owner may read it.
tl::expected<std::string, std::string> read_token(const std::filesystem::path& file);

}  // namespace gpuwire::tls
