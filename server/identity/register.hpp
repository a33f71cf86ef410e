// The credentials that a server has issued, with their owners and revocations: register.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "server/identity/certificate.hpp"
#include "server/identity/token.hpp"

namespace gpuwire::server {

inline constexpr size_t kCredentialsMax = 65'536;
inline constexpr size_t kRegisterBytesMax = 32u << 20;
inline constexpr size_t kJobNameBytesMax = 128;
inline constexpr unsigned kJobGpusMax = 1024;
// Tokens of jobs are removed this long after their expiry: a cluster makes many, and none of their programs runs by
// then.
inline constexpr std::chrono::hours kJobTokensKeptFor{1};

enum class CredentialKind : uint8_t { certificate, token };

struct Credential {
  CredentialKind kind = CredentialKind::certificate;
  // A certificate's serial, a token's id.
  std::string id;
  std::string tenant;
  // The user of the tenant who owns it; empty: no particular user.
  std::string user;
  WallTime issued, expires;
  std::optional<WallTime> revoked;
  // With `revoked`: end running sessions of this credential.
  bool end_sessions = false;
  // The hash of a token.
  TokenHash hash{};
  // The job for which a token was made, in the batch system's words.
  std::string job;
  // With `job`: the number of GPUs of all of the job's sessions together.
  unsigned gpus = 0;
};

// A value; no locks.
class Register {
 public:
  // The error describes the fault of the text, without secrets (the text contains only hashes).
  static tl::expected<Register, std::string> parse(const std::string& json);
  std::string text() const;

  const std::vector<Credential>& credentials() const { return credentials_; }
  // False: the register has kCredentialsMax entries, or one with this id.
  bool add(Credential credential);
  const Credential* find(CredentialKind kind, std::string_view id) const;
  // Returns the credential of either kind.
  const Credential* find(std::string_view id) const;
  // Compares with every token, whatever it finds, so that the time reveals nothing about the tokens.
  const Credential* find_token(std::string_view token) const;
  // Revokes the credentials of this tenant or "tenant/user", or the one with this id, and returns those that were valid
  // until now. For already revoked ones it only sets `end_sessions`.
  std::vector<Credential> revoke(std::string_view name_or_id, bool end_sessions, WallTime now);
  // Does the same for all tokens of a job.
  std::vector<Credential> revoke_job(std::string_view job, bool end_sessions, WallTime now);
  // Drops the tokens of jobs that were revoked or expired before this time.
  void forget_jobs(WallTime before);
  // Returns whether any credential, revoked or not, matches.
  bool knows(std::string_view name_or_id) const;

 private:
  std::vector<Credential> credentials_;
};

// Returns for example "course/anna", or only the tenant if there is no user.
std::string label_of(std::string_view tenant, std::string_view user);

// Returns whether the text has 1 to kJobNameBytesMax letters, digits, and any of ._-:/@+
bool is_job_name(std::string_view name);

// Returns why a credential is invalid now ("was revoked on 2026-11-21 17:00 UTC", "expired on ..."); empty: it is
// valid.
std::string why_invalid(const Credential& credential, WallTime now);
// Converts times to text such as "2026-11-21T17:00:00Z" and back, as in register.json.
std::string to_text(WallTime time);
std::optional<WallTime> time_from_text(const std::string& text);
// "2026-11-21 17:00 UTC", for people.
std::string to_words(WallTime time);

}  // namespace gpuwire::server
