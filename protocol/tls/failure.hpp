// The reason why a TLS connection was not established or has ended, in words for the person who has to act on it.
#pragma once

#include <string>

#include "protocol/tls/openssl.hpp"

namespace gpuwire::tls {

// The result of the check of the server's certificate. It is recorded during the check, because OpenSSL discards the
// certificate afterwards.
struct CertificateFault {
  // X509_V_ERR_*; 0: none.
  int error = 0;
  // 0: the server's own certificate.
  int depth = 0;
  // The names in the server's own certificate: "gpu7, 192.0.2.7".
  std::string names;
  // The day on which the certificate at `depth` becomes valid or has expired.
  std::string until;
};

// A callback for SSL_set_verify() that records the fault in `fault_of(connection)`.
int note_certificate_fault(int fine, X509_STORE_CTX* checked);
void set_fault_place(SSL* connection, CertificateFault* fault);

// The server that the client wants to connect to.
struct Wanted {
  // The name or address that the client used.
  std::string host;
  // The file of the trusted authorities.
  std::string authorities_from;
};

// Returns true if the calling thread's first error is an alert, which is the other side's report of the fault.
bool alert_came();

// Converts the calling thread's errors to one line and removes them. `client`: this side is the client.
std::string failure_text(bool client, const CertificateFault& fault, const Wanted& wanted);

}  // namespace gpuwire::tls
