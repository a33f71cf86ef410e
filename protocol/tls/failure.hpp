// The reason why a TLS connection was not established or ended, in words for the person who has to act on it.
#pragma once

#include <string>

#include "protocol/tls/openssl.hpp"

namespace gpuwire::tls {

// The result of the check of the server's certificate, recorded during the check: afterwards OpenSSL has forgotten the
// certificate.
struct CertificateFault {
  int error = 0;      // X509_V_ERR_*; 0: none
  int depth = 0;      // 0: the server's own
  std::string names;  // that its own is for: "gpu7, 192.0.2.7"
  std::string until;  // of the one at `depth`: the day on which it becomes, or ceased to be, valid
};

// For SSL_set_verify(): notes the fault in `fault_of(connection)`.
int note_certificate_fault(int fine, X509_STORE_CTX* checked);
void set_fault_place(SSL* connection, CertificateFault* fault);

// Whom the connection was to be made with.
struct Wanted {
  std::string host;              // name or address that the server was called by
  std::string authorities_from;  // the file whose authorities count
};

// Is the calling thread's first error an alert, the other side's own report of the fault?
bool alert_came();

// One line out of the calling thread's errors, and takes these away. `client`: this side is the client.
std::string failure_text(bool client, const CertificateFault& fault, const Wanted& wanted);

}  // namespace gpuwire::tls
