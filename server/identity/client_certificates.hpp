// The login process and the web page verify the certificates that tenants show by these functions.
#pragma once

#include <optional>

#include <openssl/ssl.h>

#include "server/identity/tenant_choice.hpp"

namespace gpuwire::server {

// Makes the connections of `context` ask for a client certificate of `authority`. Lets the handshake finish with any
// certificate or none, so that the client can get a readable reason. An invalid certificate is refused when it is
// evaluated (choose_tenant); until then the client has no more rights than one without a certificate. Returns false:
// out of memory.
bool ask_for_certificates(SSL_CTX* context, X509* authority);

// Returns the client's certificate after the handshake of such a connection; none: no certificate.
std::optional<ShownCertificate> shown_certificate(SSL* connection);

}  // namespace gpuwire::server
