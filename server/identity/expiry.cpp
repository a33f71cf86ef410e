#include "server/identity/expiry.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "server/identity/administration.hpp"

namespace gpuwire::server {

std::vector<Expiry> expiries_of(const Register& credentials, WallTime now) {
  std::map<std::string, Expiry> last;
  for (const Credential& one : credentials.credentials()) {
    if (one.revoked || !one.job.empty()) continue;
    auto [of, first] = last.try_emplace(one.tenant, Expiry{Expiry::Of::tenant, one.tenant, one.kind, one.expires});
    if (!first && one.expires > of->second.expires)
      of->second = {Expiry::Of::tenant, one.tenant, one.kind, one.expires};
  }
  std::vector<Expiry> found;
  for (auto& [tenant, one] : last)
    if (one.expires >= now - kExpiryForgotten) found.push_back(std::move(one));
  return found;
}

tl::expected<std::vector<Expiry>, std::string> expiries(const std::filesystem::path& directory, WallTime now) {
  auto facts = server_facts(directory);
  if (!facts) return tl::unexpected(facts.error());
  auto credentials = read_register(directory);
  if (!credentials) return tl::unexpected(credentials.error());
  std::vector<Expiry> found{{.of = Expiry::Of::authority, .tenant = {}, .expires = facts->authority_expires},
                            {.of = Expiry::Of::server, .tenant = {}, .expires = facts->server_expires}};
  for (Expiry& one : expiries_of(*credentials, now)) found.push_back(std::move(one));
  return found;
}

std::string expiry_line(const Expiry& what, WallTime now) {
  if (what.expires > now + kExpiryNotice) return {};
  const auto days = std::chrono::duration_cast<std::chrono::days>(what.expires - now).count();
  const std::string when =
      what.expires <= now ? fmt::format("expired on {}", to_words(what.expires))
      : days == 0         ? fmt::format("expires on {}, in less than a day", to_words(what.expires))
                  : fmt::format("expires on {}, in {} day{}", to_words(what.expires), days, days == 1 ? "" : "s");
  switch (what.of) {
    case Expiry::Of::authority:
      return fmt::format("the certificate authority {}, and with it all that it has signed: gpuwire admin renew --ca",
                         when);
    case Expiry::Of::server: return fmt::format("the server's certificate {}: gpuwire admin renew", when);
    case Expiry::Of::tenant: break;
  }
  const bool token = what.kind == CredentialKind::token;
  return fmt::format("the {} of tenant {} {}: gpuwire admin add-tenant {}{}", token ? "token" : "certificate",
                     what.tenant, when, what.tenant, token ? " --token" : "");
}

const char* name_of(Expiry::Of what) {
  switch (what) {
    case Expiry::Of::authority: return "authority";
    case Expiry::Of::server: return "server";
    case Expiry::Of::tenant: return "tenant";
  }
  return "?";
}

}  // namespace gpuwire::server
