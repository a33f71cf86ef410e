// The operations of `gpuwire admin` on an identity folder: one function for each command. Each takes the folder's lock
// while it changes something.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "server/identity/identity_directory.hpp"

namespace gpuwire::server {

struct InitOptions {
  // The names that clients may use; the first names the server.
  std::vector<std::string> hosts;
  unsigned authority_days = kAuthorityDays, server_days = kServerDays;
};
// Makes an authority, a server certificate and an empty register. The error: the folder already has an identity, or is
// not writable.
tl::expected<void, std::string> init_identity(const std::filesystem::path& directory, const InitOptions& options,
                                              WallTime now);

struct NewCredential {
  Credential credential;
  // The tenant's part: a bundle, or a file with a token.
  std::string text;
  // Ca.pem: the authority that the owner of a token needs beside it.
  std::string authority;
};
// `out`: the file for `text`, 0600, written before the credential is valid; empty: none. `user`: the user of the tenant
// who gets it; empty: no particular user.
tl::expected<NewCredential, std::string> add_certificate(const std::filesystem::path& directory,
                                                         const std::string& tenant, unsigned days,
                                                         const std::filesystem::path& out, WallTime now,
                                                         const std::string& user = {});
tl::expected<NewCredential, std::string> add_token(const std::filesystem::path& directory, const std::string& tenant,
                                                   unsigned days, const std::filesystem::path& out, WallTime now,
                                                   const std::string& user = {});

// Makes a token for one job of a batch system.
struct JobToken {
  std::string tenant, job;
  // The number of GPUs that the job's sessions may have, all together.
  unsigned gpus = 1;
  std::chrono::seconds lifetime{};
};
inline constexpr std::chrono::seconds kJobLifetimeMin{60}, kJobLifetimeMax{std::chrono::hours(24) * 366};
// A job may have several tokens (one for each of its nodes), which share its GPUs. `text`: only the token. The function
// removes tokens of jobs that ended long ago.
tl::expected<NewCredential, std::string> add_job_token(const std::filesystem::path& directory, const JobToken& wanted,
                                                       WallTime now);
// Revokes all tokens of a job. Returns the tokens revoked by this call; empty: none was valid, which is no error,
// because a job may end before it begins.
tl::expected<std::vector<Credential>, std::string> revoke_job(const std::filesystem::path& directory,
                                                              const std::string& job, bool end_sessions, WallTime now);

// Revokes credentials by tenant, "tenant/user", serial or token id. Returns the credentials revoked by this call. The
// error: no credential has this name.
tl::expected<std::vector<Credential>, std::string> revoke_credentials(const std::filesystem::path& directory,
                                                                      const std::string& name_or_id, bool end_sessions,
                                                                      WallTime now);

struct ServerFacts {
  // The name of the authority.
  std::string name;
  WallTime authority_expires, server_expires;
  std::vector<std::string> hosts;
};
// Makes a new key and certificate for the server, signed by the same authority, so that clients notice nothing. Adds
// `hosts` to the present names, or replaces these with `replace_hosts`, if `hosts` is not empty.
tl::expected<ServerFacts, std::string> renew_server(const std::filesystem::path& directory,
                                                    const std::vector<std::string>& hosts, bool replace_hosts,
                                                    unsigned days, WallTime now);
// Renews the authority for this many days, with its own key: certificates that it has signed stay valid. Takes effect
// for clients that trust its new certificate, which later bundles contain; others trust the old one until it expires.
tl::expected<ServerFacts, std::string> renew_authority_of(const std::filesystem::path& directory, unsigned days,
                                                          WallTime now);
tl::expected<ServerFacts, std::string> server_facts(const std::filesystem::path& directory);

}  // namespace gpuwire::server
