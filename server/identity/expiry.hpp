// Lists the coming expiries of the server's and its tenants' credentials, so that they can be announced.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "server/identity/register.hpp"

namespace gpuwire::server {

// Expiries are announced this long in advance, because people distribute certificates by hand and may be away.
inline constexpr std::chrono::hours kExpiryNotice{30 * 24};
// A credential that expired this long ago is not listed any more.
inline constexpr std::chrono::hours kExpiryForgotten{30 * 24};

struct Expiry {
  enum class Of : uint8_t { authority, server, page, tenant } of = Of::server;
  // The tenant of the credential.
  std::string tenant;
  // The user of the tenant who owns it; empty: no particular user.
  std::string user;
  CredentialKind kind = CredentialKind::certificate;
  // A certificate's serial, a token's id.
  std::string id;
  // Its owner has another of its kind that is valid for longer, so no action is needed.
  bool renewed = false;
  // WallTime::max(): never.
  WallTime expires;
};

// Returns the credentials by tenant, user, kind and expiry, without revoked ones, tokens of jobs, credentials that
// expired long ago, and expired credentials that had been renewed.
std::vector<Expiry> expiries_of(const Register& credentials, WallTime now);
// Returns the expiries of authority, server and tenants, in this order. The error names the file.
tl::expected<std::vector<Expiry>, std::string> expiries(const std::filesystem::path& directory, WallTime now);

// Returns the expiry of the web page's certificate (web_certificate). The error names the file.
tl::expected<Expiry, std::string> expiry_of_page(const std::filesystem::path& certificate);

// Returns for example "the server's certificate expires on 2026-12-05 17:00 UTC, in 12 days: gpuwire admin renew";
// empty: the credential does not expire within kExpiryNotice, or was renewed.
std::string expiry_line(const Expiry& what, WallTime now);
const char* name_of(Expiry::Of what);
const char* name_of(CredentialKind kind);

}  // namespace gpuwire::server
