#include "server/identity/server_identity.hpp"

#include <fmt/format.h>

#include "protocol/tls/context.hpp"
#include "server/identity/identity_directory.hpp"

namespace gpuwire::server {
namespace {

constexpr size_t kCertificateChainBytesMax = 16u << 10;

using Failure = tl::unexpected<std::string>;

// The first error of a verification is stored with the connection, so that a later success does not hide it.
int error_index() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

// Lets the handshake finish with any certificate, so that the client can get a readable reason. The certificate is
// refused when it is evaluated (shown_certificate); until then the client has no more rights than one without a
// certificate.
int note_verification(int ok, X509_STORE_CTX* verification) {
  auto* connection = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(verification, SSL_get_ex_data_X509_STORE_CTX_idx()));
  if (!ok && !SSL_get_ex_data(connection, error_index()))
    SSL_set_ex_data(connection, error_index(),
                    reinterpret_cast<void*>(intptr_t(X509_STORE_CTX_get_error(verification))));
  return 1;
}

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
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, note_verification);
  if (!tls::restrict_server(context)) return false;
  // No byte beyond the present record is read: the bytes after a client's login are for its worker.
  SSL_CTX_set_read_ahead(context, 0);
  SSL_CTX_set_default_read_buffer_len(context, 0);
  SSL_CTX_set_mode(context,
                   SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_max_cert_list(context, long(kCertificateChainBytesMax));
  X509_STORE_set_flags(SSL_CTX_get_cert_store(context), X509_V_FLAG_X509_STRICT);
  return SSL_CTX_use_certificate(context, parts.certificate.get()) == 1 &&
         SSL_CTX_use_PrivateKey(context, parts.key.get()) == 1 &&
         X509_STORE_add_cert(SSL_CTX_get_cert_store(context), parts.authority.get()) == 1 &&
         SSL_CTX_add_client_CA(context, parts.authority.get()) == 1;
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

std::optional<ShownCertificate> ServerIdentity::shown_certificate(SSL* connection) {
  X509* certificate = SSL_get0_peer_certificate(connection);
  if (!certificate) return std::nullopt;
  int error = int(reinterpret_cast<intptr_t>(SSL_get_ex_data(connection, error_index())));
  if (error == X509_V_OK) error = int(SSL_get_verify_result(connection));
  ShownCertificate shown{
      .serial = serial_of(certificate), .verify_error = error, .expires = to_words(expiry_of(certificate))};
  // An unverified name is untrusted text.
  if (auto tenant = tenant_of(certificate); tenant) shown.tenant = *tenant;
  if (error != X509_V_OK) shown.verify_text = X509_verify_cert_error_string(error);
  return shown;
}

}  // namespace gpuwire::server
