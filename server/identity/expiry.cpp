#include "server/identity/expiry.hpp"

#include <algorithm>
#include <fstream>
#include <tuple>

#include <fmt/format.h>

#include "server/identity/administration.hpp"
#include "server/identity/identity_directory.hpp"

namespace gpuwire::server {

std::vector<Expiry> expiries_of(const Register& credentials, WallTime now) {
  std::vector<Expiry> found;
  for (const Credential& one : credentials.credentials()) {
    if (one.revoked || !one.job.empty() || one.expires < now - kExpiryForgotten) continue;
    found.push_back({.of = Expiry::Of::tenant,
                     .tenant = one.tenant,
                     .user = one.user,
                     .kind = one.kind,
                     .id = one.id,
                     .expires = one.expires});
  }
  std::sort(found.begin(), found.end(), [](const Expiry& a, const Expiry& b) {
    return std::tie(a.tenant, a.user, a.kind, a.expires, a.id) < std::tie(b.tenant, b.user, b.kind, b.expires, b.id);
  });
  for (size_t i = 0; i + 1 < found.size(); ++i) {
    const Expiry& next = found[i + 1];
    found[i].renewed = found[i].tenant == next.tenant && found[i].user == next.user && found[i].kind == next.kind;
  }
  std::erase_if(found, [&](const Expiry& one) { return one.renewed && one.expires <= now; });
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

tl::expected<Expiry, std::string> expiry_of_page(const std::filesystem::path& certificate) {
  std::ifstream file(certificate);
  std::string text(kPemBytesMax, '\0');
  file.read(text.data(), std::streamsize(text.size()));
  text.resize(size_t(file.gcount()));
  auto read = read_certificate(text);
  if (!read) return tl::unexpected(fmt::format("{}: {}", certificate.string(), read.error()));
  return Expiry{.of = Expiry::Of::page, .tenant = {}, .expires = expiry_of(read->get())};
}

std::string expiry_line(const Expiry& what, WallTime now) {
  if (what.renewed || what.expires > now + kExpiryNotice) return {};
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
    case Expiry::Of::page:
      return fmt::format("the web page's certificate {}: put a new one in the place of web_certificate and web_key",
                         when);
    case Expiry::Of::tenant: break;
  }
  const bool token = what.kind == CredentialKind::token, of_user = !what.user.empty();
  return fmt::format("the {} of tenant {}{} {}: gpuwire admin add-tenant {}{}{}", name_of(what.kind), what.tenant,
                     of_user ? " for user " + what.user : "", when, what.tenant, of_user ? " --user " + what.user : "",
                     token ? " --token" : "");
}

const char* name_of(Expiry::Of what) {
  switch (what) {
    case Expiry::Of::authority: return "authority";
    case Expiry::Of::server: return "server";
    case Expiry::Of::page: return "web page";
    case Expiry::Of::tenant: return "tenant";
  }
  return "?";
}

const char* name_of(CredentialKind kind) { return kind == CredentialKind::token ? "token" : "certificate"; }

}  // namespace gpuwire::server
