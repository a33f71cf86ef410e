// What the servers have in common to which tenants show their certificates: the login process and the web page.
#pragma once

#include <optional>

#include <openssl/ssl.h>

#include "server/identity/tenant_choice.hpp"

namespace gpuwire::server {

// The connections of `context` ask for a client certificate of `authority`, and the handshake finishes with any
// certificate or none, so that the client can get a reason in words. A certificate that does not count is refused when
// it is evaluated (choose_tenant); until then the client has no more rights than one without a certificate.
// False: out of memory.
bool ask_for_certificates(SSL_CTX* context, X509* authority);

// After the handshake of such a connection: the client's certificate; none: it has shown none.
std::optional<ShownCertificate> shown_certificate(SSL* connection);

}  // namespace gpuwire::server
