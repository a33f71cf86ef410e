#include "server/identity/tenant_choice.hpp"

#include <fmt/format.h>
#include <openssl/x509_vfy.h>

namespace gpuwire::server {
namespace {

using Choice = std::variant<ChosenTenant, RefusedTenant>;

RefusalKind kind_of(const Credential& credential) {
  return credential.revoked ? RefusalKind::revoked : RefusalKind::expired;
}

RefusedTenant why_not_verified(const ShownCertificate& shown) {
  RefusedTenant refused{
      RefusalKind::certificate, {}, {}, shown.serial};  // whatever name it contains: no trusted authority has signed it
  switch (shown.verify_error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      refused.kind = RefusalKind::expired;
      refused.tenant = shown.tenant;
      refused.reason = fmt::format("the certificate of tenant {} expired on {}", shown.tenant, shown.expires);
      break;
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
      refused.kind = RefusalKind::foreign;
      refused.reason =
          "the client's certificate is self-signed: this server accepts only what its own authority has signed";
      break;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      refused.kind = RefusalKind::foreign;
      refused.reason = "the client's certificate was issued by another authority than this server's";
      break;
    default: refused.reason = fmt::format("the client's certificate is not valid: {}", shown.verify_text);
  }
  return refused;
}

Choice by_certificate(const ShownCertificate& shown, const Register* credentials, WallTime now) {
  if (shown.verify_error != 0) return why_not_verified(shown);
  if (shown.tenant.empty())
    return RefusedTenant{RefusalKind::certificate, "the client's certificate names no tenant", {}, shown.serial};
  const Credential* known = credentials ? credentials->find(CredentialKind::certificate, shown.serial) : nullptr;
  if (!known || known->tenant != shown.tenant)
    return RefusedTenant{RefusalKind::foreign, "the client's certificate is not in this server's register",
                         shown.tenant, shown.serial};
  if (std::string why = why_invalid(*known, now); !why.empty())
    return RefusedTenant{kind_of(*known), fmt::format("the certificate of tenant {} {}", shown.tenant, why),
                         shown.tenant, shown.serial};
  return ChosenTenant{shown.tenant, "tls certificate", shown.serial, known->user, known->expires};
}

Choice by_token(const Shown& shown, const Register* credentials, WallTime now) {
  const Credential* known = credentials ? credentials->find_token(shown.token) : nullptr;
  if (!known) return RefusedTenant{RefusalKind::token, "this server does not know the token", {}, {}};
  if (std::string why = why_invalid(*known, now); !why.empty())
    return RefusedTenant{kind_of(*known), fmt::format("the token of tenant {} {}", known->tenant, why), known->tenant,
                         known->id};
  return ChosenTenant{known->tenant, shown.tls ? "tls token" : "token", known->id, known->user,
                      known->job.empty() ? std::optional(known->expires) : std::nullopt};
}

}  // namespace

const char* name_of(RefusalKind kind) {
  switch (kind) {
    case RefusalKind::certificate: return "certificate";
    case RefusalKind::revoked: return "revoked";
    case RefusalKind::expired: return "expired";
    case RefusalKind::foreign: return "foreign";
    case RefusalKind::token: return "token";
    case RefusalKind::mismatch: return "mismatch";
    case RefusalKind::no_identity: return "no_identity";
    case RefusalKind::protocol: return "protocol";
    case RefusalKind::tls: return "tls";
    case RefusalKind::timeout: return "timeout";
    case RefusalKind::overload: return "overload";
  }
  return "?";
}

Choice choose_tenant(const Shown& shown, const Register* credentials, WallTime now) {
  if (shown.certificate) {
    Choice choice = by_certificate(*shown.certificate, credentials, now);
    const auto* chosen = std::get_if<ChosenTenant>(&choice);
    if (!chosen || shown.token.empty()) return choice;
    Choice token = by_token(shown, credentials, now);
    const auto* other = std::get_if<ChosenTenant>(&token);
    if (!other) return token;
    if (other->tenant != chosen->tenant)
      return RefusedTenant{RefusalKind::mismatch, "the client's certificate and its token are of different tenants",
                           chosen->tenant, chosen->credential};
    if (!other->user.empty() && !chosen->user.empty() && other->user != chosen->user)
      return RefusedTenant{RefusalKind::mismatch, "the client's certificate and its token are of different users",
                           chosen->tenant, chosen->credential};
    return choice;
  }
  if (!shown.token.empty()) return by_token(shown, credentials, now);
  if (!shown.unix_tenant.empty()) return ChosenTenant{shown.unix_tenant, "unix", {}, shown.unix_user};
  if (!shown.open_tenant.empty()) return ChosenTenant{shown.open_tenant, shown.tls ? "tls" : "plain", {}};
  return RefusedTenant{RefusalKind::no_identity,
                       "this server requires a certificate or a token (gpuwire admin add-tenant makes one)",
                       {},
                       {}};
}

}  // namespace gpuwire::server
