// The expiries of a server's and its tenants' credentials, so that nobody finds out by a refusal.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "server/identity/register.hpp"

namespace gpuwire::server {

// Announced from this long before the end on: people hand certificates out, and some of them are away.
inline constexpr std::chrono::hours kExpiryNotice{30 * 24};
// A credential that ended this long ago is not missed any more.
inline constexpr std::chrono::hours kExpiryForgotten{30 * 24};

struct Expiry {
  enum class Of : uint8_t { authority, server, tenant } of = Of::server;
  std::string tenant;  // of a tenant's
  std::string user;    // the user of the tenant that it was given to; empty: no particular user
  CredentialKind kind = CredentialKind::certificate;
  std::string id;        // a certificate's serial, a token's id
  bool renewed = false;  // its owner has another of its kind that counts for longer: nobody needs to act
  WallTime expires;      // WallTime::max(): never
};

// Each credential, by tenant, user, kind and end. Revoked ones and tokens of jobs do not count, nor those that ended
// long ago or had been renewed when they ended.
std::vector<Expiry> expiries_of(const Register& credentials, WallTime now);
// Those of authority, server and tenants, in this order. The error names the file.
tl::expected<std::vector<Expiry>, std::string> expiries(const std::filesystem::path& directory, WallTime now);

// "the server's certificate expires on 2026-12-05 17:00 UTC, in 12 days: gpuwire admin renew"; empty: it is not due
// within kExpiryNotice, or has been renewed.
std::string expiry_line(const Expiry& what, WallTime now);
const char* name_of(Expiry::Of what);
const char* name_of(CredentialKind kind);

}  // namespace gpuwire::server
