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
  // Empty: it names none.
  std::string tenant;
  // The first X509_V_ERR of its verification; 0: signed by the lab's authority, and within its validity.
  int verify_error = 0;
  std::string verify_text;
  // For people.
  std::string expires;
};

struct Shown {
  bool tls = false;
  std::optional<ShownCertificate> certificate;
  std::string token;
  // As the broker says.
  std::string unix_tenant, open_tenant;
  // With unix_tenant: the caller's user name on the machine.
  std::string unix_user = {};
};

struct ChosenTenant {
  std::string tenant, security, credential;
  // The user of the tenant; empty: no particular user.
  std::string user = {};
  // The credential's expiry; none: it has no expiry, or is a job's token, which ends with the job.
  std::optional<WallTime> expires = {};
};
struct RefusedTenant {
  RefusalKind kind;
  // One line, which the client also gets: it reveals nothing to the client.
  std::string reason;
  // For the audit, as far as known.
  std::string tenant, credential;
};

// A certificate takes precedence over a token, a token over a Unix user, and a Unix user over the open tenant. An
// invalid credential is refused, whatever other credentials the client presents. `credentials`: null if the server has
// no identity.
std::variant<ChosenTenant, RefusedTenant> choose_tenant(const Shown& shown, const Register* credentials, WallTime now);

}  // namespace gpuwire::server
