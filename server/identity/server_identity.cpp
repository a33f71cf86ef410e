#include "server/identity/server_identity.hpp"

#include <fmt/format.h>

#include "protocol/tls/context.hpp"
#include "server/identity/client_certificates.hpp"
#include "server/identity/identity_directory.hpp"

namespace gpuwire::server {
namespace {

using Failure = tl::unexpected<std::string>;

struct Parts {
  CertificateHandle authority, certificate;
  KeyHandle key;
};

tl::expected<Parts, std::string> read_parts(const IdentityTexts& texts, WallTime now) {
  auto named = [](std::string_view file, const std::string& why) { return Failure(fmt::format("{}: {}", file, why)); };
  auto authority = read_certificate(texts.authority);
  if (!authority) return named(kAuthorityCertificateFile, authority.error());
  auto certificate = read_certificate(texts.server_certificate);
  if (!certificate) return named(kServerCertificateFile, certificate.error());
  auto key = read_key(texts.server_key);
  if (!key) return named(kServerKeyFile, key.error());
  if (X509_check_private_key(certificate->get(), key->get()) != 1)
    return named(kServerKeyFile, openssl_error("not the key of " + std::string(kServerCertificateFile)));
  OpensslHandle<EVP_PKEY> signer(X509_get_pubkey(authority->get()));
  if (!signer || X509_verify(certificate->get(), signer.get()) != 1)
    return named(kServerCertificateFile, openssl_error("not signed by " + std::string(kAuthorityCertificateFile)));
  if (expiry_of(authority->get()) <= now)
    return named(kAuthorityCertificateFile, "it expired on " + to_words(expiry_of(authority->get())));
  if (expiry_of(certificate->get()) <= now)
    return named(kServerCertificateFile, fmt::format("it expired on {}; gpuwire admin renew makes a new one",
                                                     to_words(expiry_of(certificate->get()))));
  return Parts{std::move(*authority), std::move(*certificate), std::move(*key)};
}

bool configure(SSL_CTX* context, const Parts& parts) {
  if (!ask_for_certificates(context, parts.authority.get()) || !tls::restrict_server(context)) return false;
  // No byte beyond the present record is read: the bytes after a client's login are for its worker.
  SSL_CTX_set_read_ahead(context, 0);
  SSL_CTX_set_default_read_buffer_len(context, 0);
  SSL_CTX_set_mode(context,
                   SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return SSL_CTX_use_certificate(context, parts.certificate.get()) == 1 &&
         SSL_CTX_use_PrivateKey(context, parts.key.get()) == 1;
}

}  // namespace

tl::expected<std::shared_ptr<const ServerIdentity>, std::string> ServerIdentity::make(const IdentityTexts& texts,
                                                                                      WallTime now) {
  tls::start_openssl();
  auto parts = read_parts(texts, now);
  if (!parts) return Failure(parts.error());
  auto credentials = Register::parse(texts.credentials);
  if (!credentials) return Failure(fmt::format("{}: {}", kRegisterFile, credentials.error()));
  std::shared_ptr<ServerIdentity> identity(new ServerIdentity);
  identity->credentials_ = std::move(*credentials);
  identity->context_.reset(SSL_CTX_new(TLS_server_method()));
  if (!identity->context_ || !configure(identity->context_.get(), *parts))
    return Failure(openssl_error("the server's TLS settings"));
  return identity;
}

tls::Connection ServerIdentity::connect(int socket) const {
  tls::Connection connection(SSL_new(context_.get()));
  if (!connection || SSL_set_fd(connection.get(), socket) != 1) return nullptr;
  SSL_set_accept_state(connection.get());
  return connection;
}

}  // namespace gpuwire::server
