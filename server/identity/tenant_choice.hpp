// Determines a client's tenant from its credential: a certificate, a token, the user behind a Unix socket, or nothing.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "server/identity/register.hpp"

namespace gpuwire::server {

// Words for the audit; stable.
enum class RefusalKind : uint8_t {
  certificate,
  revoked,
  expired,
  foreign,
  token,
  mismatch,
  no_identity,
  protocol,
  tls,
  timeout,
  overload
};
const char* name_of(RefusalKind kind);

struct ShownCertificate {
  std::string serial;
  std::string tenant;    // empty: it names none
  int verify_error = 0;  // the first X509_V_ERR of its verification; 0: our authority's, and its time is now
  std::string verify_text;
  std::string expires;  // for people
};

struct Shown {
  bool tls = false;
  std::optional<ShownCertificate> certificate;
  std::string token;
  std::string unix_tenant, open_tenant;  // as the broker says
  std::string unix_user = {};            // with unix_tenant: the machine's name of the caller
};

struct ChosenTenant {
  std::string tenant, security, credential;
  std::string user = {};                 // the user of the tenant; empty: no particular user
  std::optional<WallTime> expires = {};  // of the credential; none: it has none, or is a job's, which ends with the job
};
struct RefusedTenant {
  RefusalKind kind;
  std::string reason;              // one line, for the client too: says nothing that it does not know
  std::string tenant, credential;  // for the audit, as far as known
};

// A certificate before a token before a Unix user before the open tenant; an invalid credential is refused, whatever
// else is shown. `credentials`: null when the server has no identity.
std::variant<ChosenTenant, RefusedTenant> choose_tenant(const Shown& shown, const Register* credentials, WallTime now);

}  // namespace gpuwire::server
