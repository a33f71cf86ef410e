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
  CredentialKind kind = CredentialKind::certificate;
  WallTime expires;  // WallTime::max(): never
};

// For each tenant the credential with the latest expiry: a renewed one makes its predecessor's end irrelevant. Revoked
// ones and tokens of jobs do not count, nor those that ended long ago.
std::vector<Expiry> expiries_of(const Register& credentials, WallTime now);
// Those of authority, server and tenants, in this order. The error names the file.
tl::expected<std::vector<Expiry>, std::string> expiries(const std::filesystem::path& directory, WallTime now);

// "the server's certificate expires on 2026-12-05 17:00 UTC, in 12 days: gpuwire admin renew"; empty: it is not due
// within kExpiryNotice.
std::string expiry_line(const Expiry& what, WallTime now);
const char* name_of(Expiry::Of what);

}  // namespace gpuwire::server
