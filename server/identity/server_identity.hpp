// The data with which the login process authenticates clients: the server's certificate and key, the authority, the
// register. Loaded again when a file changes.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "protocol/tls/openssl.hpp"
#include "server/identity/identity_directory.hpp"
#include "server/identity/register.hpp"

namespace gpuwire::server {

struct IdentityTexts {
  std::string authority, server_certificate, server_key, credentials;
};

// The files of the identity folder, in the order of IdentityFile, in which the broker sends their texts.
struct IdentityFileText {
  std::string_view name;
  size_t bytes_max;
  std::string IdentityTexts::*text;
};
inline constexpr std::array<IdentityFileText, 4> kIdentityFileTexts{
    {{kAuthorityCertificateFile, kPemBytesMax, &IdentityTexts::authority},
     {kServerCertificateFile, kPemBytesMax, &IdentityTexts::server_certificate},
     {kServerKeyFile, kPemBytesMax, &IdentityTexts::server_key},
     {kRegisterFile, kRegisterBytesMax, &IdentityTexts::credentials}}};

// Immutable, shared by the connections that began with it.
class ServerIdentity {
 public:
  // The error names the file and the reason: unreadable, key and certificate do not belong together, expired, of
  // another authority.
  static tl::expected<std::shared_ptr<const ServerIdentity>, std::string> make(const IdentityTexts& texts,
                                                                               WallTime now);

  const Register& credentials() const { return credentials_; }
  // Makes the server's TLS end for a connected, non-blocking socket; null: out of memory. The caller keeps the
  // ownership of `socket`.
  tls::Connection connect(int socket) const;

 private:
  ServerIdentity() = default;
  tls::Context context_;
  Register credentials_;
};

}  // namespace gpuwire::server
