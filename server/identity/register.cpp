#include "server/identity/register.hpp"

#include <algorithm>
#include <cstdio>
#include <set>

#include <fmt/format.h>

#include "protocol/units/json.hpp"

namespace gpuwire::server {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kIdBytesMax = 64;

struct BadEntry {
  std::string reason;
};

std::string string_of(const json& entry, const char* key) {
  auto found = entry.find(key);
  if (found == entry.end() || !found->is_string()) throw BadEntry{fmt::format("\"{}\" is missing or no text", key)};
  return found->get<std::string>();
}

WallTime time_of(const json& entry, const char* key) {
  std::string text = string_of(entry, key);
  auto time = time_from_text(text);
  if (!time) throw BadEntry{fmt::format("\"{}\" is \"{}\", which is not a time", key, text)};
  return *time;
}

Credential credential_of(const json& entry) {
  if (!entry.is_object()) throw BadEntry{"no object"};
  Credential credential;
  std::string kind = string_of(entry, "kind");
  if (kind != "certificate" && kind != "token") throw BadEntry{fmt::format("kind \"{}\" is unknown", kind)};
  credential.kind = kind == "token" ? CredentialKind::token : CredentialKind::certificate;
  credential.id = string_of(entry, "id");
  if (credential.id.empty() || credential.id.size() > kIdBytesMax) throw BadEntry{"\"id\" is empty or too long"};
  credential.tenant = string_of(entry, "tenant");
  if (!is_tenant_name(credential.tenant))
    throw BadEntry{fmt::format("\"{:.64}\" is not a tenant name", credential.tenant)};
  if (entry.contains("user")) {
    credential.user = string_of(entry, "user");
    if (!is_user_name(credential.user)) throw BadEntry{fmt::format("\"{:.64}\" is not a user name", credential.user)};
  }
  credential.issued = time_of(entry, "issued");
  credential.expires = time_of(entry, "expires");
  if (entry.contains("revoked")) credential.revoked = time_of(entry, "revoked");
  credential.end_sessions = entry.value("end_sessions", false);
  if (credential.kind == CredentialKind::token && !from_hex(string_of(entry, "sha256"), credential.hash))
    throw BadEntry{"\"sha256\" is not a SHA-256"};
  if (entry.contains("job")) {
    credential.job = string_of(entry, "job");
    credential.gpus = entry.value("gpus", 0u);
    if (!is_job_name(credential.job)) throw BadEntry{fmt::format("\"{:.64}\" is not a job name", credential.job)};
    if (credential.gpus < 1 || credential.gpus > kJobGpusMax) throw BadEntry{"\"gpus\" of a job is out of range"};
  }
  return credential;
}

json json_of(const Credential& credential) {
  json entry{{"kind", credential.kind == CredentialKind::token ? "token" : "certificate"},
             {"id", credential.id},
             {"tenant", credential.tenant},
             {"issued", to_text(credential.issued)},
             {"expires", to_text(credential.expires)}};
  if (!credential.user.empty()) entry["user"] = credential.user;
  if (credential.revoked) entry["revoked"] = to_text(*credential.revoked);
  if (credential.end_sessions) entry["end_sessions"] = true;
  if (credential.kind == CredentialKind::token) entry["sha256"] = to_hex(credential.hash);
  if (!credential.job.empty()) {
    entry["job"] = credential.job;
    entry["gpus"] = credential.gpus;
  }
  return entry;
}

// Matches a credential by tenant, "tenant/user" or id. Names of tenants contain no slash.
bool is_called(const Credential& one, std::string_view name_or_id) {
  return one.tenant == name_or_id || one.id == name_or_id ||
         (!one.user.empty() && label_of(one.tenant, one.user) == name_or_id);
}

// Revokes the matching credentials; returns those that were valid until now.
template <class Matches>
std::vector<Credential> revoke_matching(std::vector<Credential>& credentials, bool end_sessions, WallTime now,
                                        Matches matches) {
  std::vector<Credential> revoked;
  for (Credential& one : credentials) {
    if (!matches(one)) continue;
    if (!one.revoked) {
      one.revoked = now;
      revoked.push_back(one);
    }
    one.end_sessions = one.end_sessions || end_sessions;
  }
  return revoked;
}

}  // namespace

tl::expected<Register, std::string> Register::parse(const std::string& text) {
  json root = parse_json(text);
  if (root.is_discarded() || !root.is_object()) return tl::unexpected(std::string("no JSON object"));
  if (auto format = root.find("format"); format == root.end() || *format != kFormat)
    return tl::unexpected(fmt::format("its format is not {}", kFormat));
  auto entries = root.find("credentials");
  if (entries == root.end() || !entries->is_array())
    return tl::unexpected(std::string("it has no list \"credentials\""));
  if (entries->size() > kCredentialsMax)
    return tl::unexpected(fmt::format("{} credentials; {} are possible", entries->size(), kCredentialsMax));
  Register parsed;
  std::set<std::string> ids;
  for (size_t i = 0; i < entries->size(); ++i) {
    try {
      Credential& one = parsed.credentials_.emplace_back(credential_of((*entries)[i]));
      if (!ids.insert(one.id).second) throw BadEntry{fmt::format("a second one with the id {}", one.id)};
    } catch (const BadEntry& bad) {
      return tl::unexpected(fmt::format("credential {}: {}", i + 1, bad.reason));
    } catch (const json::exception& error) {
      return tl::unexpected(fmt::format("credential {}: {}", i + 1, error.what()));
    }
  }
  return parsed;
}

std::string Register::text() const {
  json entries = json::array();
  for (const Credential& credential : credentials_) entries.push_back(json_of(credential));
  return dump_json(json{{"format", kFormat}, {"credentials", entries}}, 2) + "\n";
}

bool Register::add(Credential credential) {
  if (credentials_.size() >= kCredentialsMax || knows(credential.id)) return false;
  credentials_.push_back(std::move(credential));
  return true;
}

const Credential* Register::find(CredentialKind kind, std::string_view id) const {
  auto found = std::find_if(credentials_.begin(), credentials_.end(),
                            [&](const Credential& one) { return one.kind == kind && one.id == id; });
  return found == credentials_.end() ? nullptr : &*found;
}

const Credential* Register::find(std::string_view id) const {
  auto found =
      std::find_if(credentials_.begin(), credentials_.end(), [&](const Credential& one) { return one.id == id; });
  return found == credentials_.end() ? nullptr : &*found;
}

const Credential* Register::find_token(std::string_view token) const {
  const TokenHash hash = hash_token(token);
  const Credential* found = nullptr;
  for (const Credential& one : credentials_)
    if (one.kind == CredentialKind::token && same_hash(one.hash, hash)) found = &one;
  return found;
}

std::vector<Credential> Register::revoke(std::string_view name_or_id, bool end_sessions, WallTime now) {
  return revoke_matching(credentials_, end_sessions, now,
                         [&](const Credential& one) { return is_called(one, name_or_id); });
}

std::vector<Credential> Register::revoke_job(std::string_view job, bool end_sessions, WallTime now) {
  return revoke_matching(credentials_, end_sessions, now,
                         [&](const Credential& one) { return !one.job.empty() && one.job == job; });
}

void Register::forget_jobs(WallTime before) {
  std::erase_if(credentials_, [&](const Credential& one) {
    return !one.job.empty() && (one.expires < before || (one.revoked && *one.revoked < before));
  });
}

bool Register::knows(std::string_view name_or_id) const {
  return std::any_of(credentials_.begin(), credentials_.end(),
                     [&](const Credential& one) { return is_called(one, name_or_id); });
}

std::string label_of(std::string_view tenant, std::string_view user) {
  return user.empty() ? std::string(tenant) : fmt::format("{}/{}", tenant, user);
}

bool is_job_name(std::string_view name) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-:/@+";
  return !name.empty() && name.size() <= kJobNameBytesMax && name.find_first_not_of(kAllowed) == std::string_view::npos;
}

std::string why_invalid(const Credential& credential, WallTime now) {
  if (credential.revoked) return fmt::format("was revoked on {}", to_words(*credential.revoked));
  if (credential.expires <= now) return fmt::format("expired on {}", to_words(credential.expires));
  return {};
}

// Uses the standard library's calendar, because the C library's functions read the machine's time zone, which the login
// process cannot access.
std::string to_text(WallTime time) {
  using namespace std::chrono;
  const auto day = floor<days>(time);
  const year_month_day date(day);
  const hh_mm_ss clock(floor<seconds>(time - day));
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", int(date.year()), unsigned(date.month()),
                     unsigned(date.day()), clock.hours().count(), clock.minutes().count(), clock.seconds().count());
}

std::optional<WallTime> time_from_text(const std::string& text) {
  int year = 0, read = 0;
  unsigned month = 0, day = 0, hour = 0, minute = 0, second = 0;
  if (std::sscanf(text.c_str(), "%4d-%2u-%2uT%2u:%2u:%2uZ%n", &year, &month, &day, &hour, &minute, &second, &read) !=
          6 ||
      size_t(read) != text.size())
    return std::nullopt;
  return utc_time(year, month, day, hour, minute, second);
}

std::string to_words(WallTime time) {
  std::string text = to_text(time);
  return text.substr(0, 10) + " " + text.substr(11, 5) + " UTC";
}

}  // namespace gpuwire::server
