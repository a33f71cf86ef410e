// The login process's basis for authenticating clients: the server's certificate and key, the authority, the register.
// Made anew when a file changes.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include <openssl/ssl.h>
#include <tl/expected.hpp>

#include "protocol/tls/openssl.hpp"
#include "server/identity/identity_directory.hpp"
#include "server/identity/register.hpp"
#include "server/identity/tenant_choice.hpp"

namespace gpuwire::server {

struct IdentityTexts {
  std::string authority, server_certificate, server_key, credentials;
};

// Which file of the identity folder is which text, in the order of IdentityFile, in which the broker sends them.
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

// Immutable, shared by the connections that began under it.
class ServerIdentity {
 public:
  // The error names the file and the reason: unreadable, key and certificate do not belong together, expired, of
  // another authority.
  static tl::expected<std::shared_ptr<const ServerIdentity>, std::string> make(const IdentityTexts& texts,
                                                                               WallTime now);

  const Register& credentials() const { return credentials_; }
  // A server's end for a connected socket that does not block; null: out of memory. `socket` stays the caller's.
  tls::Connection connect(int socket) const;
  // After the handshake: the client's certificate; none: no certificate.
  static std::optional<ShownCertificate> shown_certificate(SSL* connection);

 private:
  ServerIdentity() = default;
  tls::Context context_;
  Register credentials_;
};

}  // namespace gpuwire::server
