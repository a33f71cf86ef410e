#include "server/cli/admin_text.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace gpuwire::server::admin_text {
namespace {

namespace fs = std::filesystem;

const char* name_of(CredentialKind kind) { return kind == CredentialKind::token ? "token" : "certificate"; }

std::string state_of(const Credential& credential, WallTime now) {
  std::string reason = why_invalid(credential, now);
  if (reason.empty()) return "valid";
  return credential.revoked ? "revoked " + to_words(*credential.revoked) : "expired";
}

std::string describe(const ServerFacts& facts) {
  return fmt::format("  authority  \"{}\", until {}\n  server     for {}, until {}\n", facts.name,
                     to_words(facts.authority_expires), fmt::join(facts.hosts, ", "), to_words(facts.server_expires));
}

}  // namespace

const char* const kDescription =
    "Manages who may use this server (creates a lab's own certificate authority, issues certificates and\n"
    "tokens to tenants, and revokes them) and the sessions of the server that runs here.\n"
    "\n"
    "Everything is kept in one folder that only the server's user can read. Run this as that user, on the\n"
    "server. A running server notices changes by itself.\n";

const char* const kFooter =
    "From nothing to two tenants:\n"
    "  gpuwire admin init --host gpu7.lab.example          once\n"
    "  gpuwire admin add-tenant alice                      writes alice.pem: for alice's machine\n"
    "  gpuwire admin add-tenant bob --token                writes bob.token and ca.pem\n"
    "  gpuwire admin users add --tenant course --from students.txt --out bundles\n"
    "                                                      thirty users of one tenant, each with its own\n"
    "  gpuwire admin revoke bob --end-sessions             locks bob out at once\n"
    "  gpuwire admin sessions                              the sessions of a running server\n"
    "  gpuwire admin end 17 --reason maintenance           ends session 17\n"
    "  gpuwire admin web-code                              signs you in to the web page\n"
    "Each command has --help.\n"
    "\n"
    "Files in the folder (0700; files 0600):\n"
    "  ca.pem, ca.key          the authority; only this command needs ca.key, which can be kept elsewhere\n"
    "                          between uses\n"
    "  server.pem, server.key  the server's certificate\n"
    "  register.json           what was issued (tokens as hashes) and revoked\n"
    "Clients check the server's certificate against ca.pem and the name that they connect to; the server\n"
    "checks a tenant's certificate against ca.pem and its serial against the register.\n"
    "\n"
    "Exit status:\n"
    "  0  done\n"
    "  1  failed; one line on standard error says why, and names the file\n"
    "  2  wrong arguments\n";

std::string initialised(const fs::path& directory, const ServerFacts& facts) {
  return fmt::format(
      "created an identity in {}\n{}\nAdd to the server's configuration:\n\n    [tls]\n    directory = \"{}\"\n\nThen: "
      "gpuwire "
      "admin add-tenant NAME\n",
      directory.string(), describe(facts), fs::absolute(directory).string());
}

std::string added(const NewCredential& made, const fs::path& out) {
  const Credential& credential = made.credential;
  return fmt::format("wrote {} {} for tenant {}, valid until {}, to {}\n", name_of(credential.kind), credential.id,
                     label_of(credential.tenant, credential.user), to_words(credential.expires), out.string());
}

std::string how_to_use(const NewCredential& made, const fs::path& out, const fs::path& authority) {
  const Credential& credential = made.credential;
  std::string client =
      credential.kind == CredentialKind::token
          ? fmt::format("GPUWIRE_TOKEN_FILE={} GPUWIRE_CA={}", out.filename().string(), authority.filename().string())
          : fmt::format("GPUWIRE_IDENTITY={}", out.filename().string());
  return fmt::format("\nOn the tenant's machine (chmod 600):\n\n    {} gpuwire run --server HOST:PORT -- PROGRAM\n",
                     client);
}

std::string configuration_lines(const std::string& tenant, const fs::path& file) {
  std::string who = file.empty() ? "If the server's configuration does not have the tenant yet, add this"
                                 : fmt::format("{} does not have the tenant yet", file.string());
  std::string key = tenant.find('.') == std::string::npos ? tenant : fmt::format("\"{}\"", tenant);
  return fmt::format(
      "\n{}:\n\n    [tenants.{}]\n    class = \"batch\"\n\nThen make the server read it again: "
      "gpuwire admin reload.\n",
      who, key);
}

std::string job_token_json(const NewCredential& made) {
  const Credential& credential = made.credential;
  return nlohmann::json{{"token", made.text},    {"id", credential.id},     {"tenant", credential.tenant},
                        {"job", credential.job}, {"gpus", credential.gpus}, {"expires", to_text(credential.expires)},
                        {"ca", made.authority}}
             .dump(2) +
         "\n";
}

std::string revoked(const std::string& what, const std::vector<Credential>& credentials, bool end_sessions) {
  std::string text;
  for (const Credential& one : credentials)
    text += fmt::format("revoked {} {} of tenant {}\n", name_of(one.kind), one.id, label_of(one.tenant, one.user));
  if (credentials.empty()) text = fmt::format("everything of {} had been revoked already\n", what);
  return text + (end_sessions ? "a running server ends their sessions\n" : "");
}

std::string renewed(const ServerFacts& facts, bool authority) {
  return (authority ? "authority and server have new certificates; tenants get the authority's with their next one\n"
                    : "the server has a new certificate\n") +
         describe(facts);
}

std::string names_gone(const std::vector<std::string>& hosts) {
  return fmt::format("the certificate no longer names {}: clients that use such a name will refuse the server",
                     fmt::join(hosts, ", "));
}

std::string list(const ServerFacts& facts, const Register& credentials, WallTime now) {
  std::string text = describe(facts);
  if (credentials.credentials().empty()) return text + "no tenant has a certificate or token yet\n";
  size_t width = 6;
  for (const Credential& one : credentials.credentials())
    width = std::max(width, label_of(one.tenant, one.user).size());
  text +=
      fmt::format("\n{:{}}  {:11}  {:32}  {:20}  {}\n", "TENANT", width, "KIND", "SERIAL OR ID", "EXPIRES", "STATE");
  for (const Credential& one : credentials.credentials())
    text +=
        fmt::format("{:{}}  {:11}  {:32}  {:20}  {}{}\n", label_of(one.tenant, one.user), width, name_of(one.kind),
                    one.id, to_words(one.expires), state_of(one, now),
                    one.job.empty() ? std::string()
                                    : fmt::format(", job {} ({} GPU{})", one.job, one.gpus, one.gpus == 1 ? "" : "s"));
  return text;
}

std::string list_json(const ServerFacts& facts, const Register& credentials, WallTime now) {
  auto entries = nlohmann::json::array();
  for (const Credential& one : credentials.credentials()) {
    nlohmann::json entry{
        {"tenant", one.tenant},          {"kind", name_of(one.kind)},       {"id", one.id},
        {"issued", to_text(one.issued)}, {"expires", to_text(one.expires)}, {"counts", why_invalid(one, now).empty()}};
    if (!one.user.empty()) entry["user"] = one.user;
    if (one.revoked) entry["revoked"] = to_text(*one.revoked);
    if (!one.job.empty()) {
      entry["job"] = one.job;
      entry["gpus"] = one.gpus;
    }
    entries.push_back(entry);
  }
  return nlohmann::json{{"authority", {{"name", facts.name}, {"expires", to_text(facts.authority_expires)}}},
                        {"server", {{"hosts", facts.hosts}, {"expires", to_text(facts.server_expires)}}},
                        {"credentials", entries}}
             .dump(2) +
         "\n";
}

}  // namespace gpuwire::server::admin_text
