#include "server/identity/client_certificates.hpp"

#include <cstdint>

#include "server/identity/certificate.hpp"
#include "server/identity/register.hpp"

namespace gpuwire::server {
namespace {

constexpr size_t kCertificateChainBytesMax = 16u << 10;

// The first error of a verification is stored with the connection, so that a later success does not hide it.
int error_index() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

int note_verification(int ok, X509_STORE_CTX* verification) {
  auto* connection = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(verification, SSL_get_ex_data_X509_STORE_CTX_idx()));
  if (!ok && !SSL_get_ex_data(connection, error_index()))
    SSL_set_ex_data(connection, error_index(),
                    reinterpret_cast<void*>(intptr_t(X509_STORE_CTX_get_error(verification))));
  return 1;
}

}  // namespace

bool ask_for_certificates(SSL_CTX* context, X509* authority) {
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, note_verification);
  SSL_CTX_set_max_cert_list(context, long(kCertificateChainBytesMax));
  X509_STORE_set_flags(SSL_CTX_get_cert_store(context), X509_V_FLAG_X509_STRICT);
  return X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority) == 1 &&
         SSL_CTX_add_client_CA(context, authority) == 1;
}

std::optional<ShownCertificate> shown_certificate(SSL* connection) {
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
