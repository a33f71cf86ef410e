// Every combination of a client's credentials.
#include <doctest/doctest.h>

#include <openssl/x509_vfy.h>

#include "server/identity/tenant_choice.hpp"

using namespace gpuwire::server;
using namespace std::chrono_literals;

namespace {

const WallTime kNow = std::chrono::system_clock::from_time_t(1'800'000'000);

struct Book {
  Register credentials;
  std::string token = new_token().value();
  Book() {
    TokenHash hash = hash_token(token);
    credentials.add({.kind = CredentialKind::token,
                     .id = token_id(hash),
                     .tenant = "bob",
                     .issued = kNow,
                     .expires = kNow + 1h,
                     .hash = hash});
    credentials.add(
        {.kind = CredentialKind::certificate, .id = "0a", .tenant = "alice", .issued = kNow, .expires = kNow + 1h});
  }
};

std::string outcome(const Shown& shown, const Register* credentials, WallTime now = kNow) {
  auto choice = choose_tenant(shown, credentials, now);
  if (auto* chosen = std::get_if<ChosenTenant>(&choice)) return chosen->tenant + " by " + chosen->security;
  return name_of(std::get<RefusedTenant>(choice).kind);
}

const ShownCertificate kAlice{.serial = "0a", .tenant = "alice"};

}  // namespace

TEST_CASE("the order is certificate, token, Unix user, open tenant") {
  Book registry;
  CHECK(outcome({.tls = true, .certificate = kAlice, .unix_tenant = "anna", .open_tenant = "open"},
                &registry.credentials) == "alice by tls certificate");
  CHECK(outcome({.token = registry.token, .unix_tenant = "anna", .open_tenant = "open"}, &registry.credentials) ==
        "bob by token");
  CHECK(outcome({.unix_tenant = "anna", .open_tenant = "open"}, &registry.credentials) == "anna by unix");
  CHECK(outcome({.open_tenant = "open"}, &registry.credentials) == "open by plain");
  CHECK(outcome({.tls = true, .open_tenant = "open"}, &registry.credentials) == "open by tls");
  CHECK(outcome({.tls = true}, &registry.credentials) == "no_identity");
}

TEST_CASE("a client's credential decides which user of the tenant it is, and two users are a mismatch") {
  Register credentials;
  const std::string token = new_token().value();
  const TokenHash hash = hash_token(token);
  credentials.add({.kind = CredentialKind::token,
                   .id = token_id(hash),
                   .tenant = "course",
                   .user = "anna",
                   .issued = kNow,
                   .expires = kNow + 1h,
                   .revoked = {},
                   .hash = hash});
  credentials.add({.kind = CredentialKind::certificate,
                   .id = "0c",
                   .tenant = "course",
                   .user = "ben",
                   .issued = kNow,
                   .expires = kNow + 1h,
                   .revoked = {}});
  auto user = [&](const Shown& shown) {
    auto choice = choose_tenant(shown, &credentials, kNow);
    auto* chosen = std::get_if<ChosenTenant>(&choice);
    return chosen ? chosen->user : std::string(name_of(std::get<RefusedTenant>(choice).kind));
  };
  const ShownCertificate ben{.serial = "0c", .tenant = "course"};
  CHECK(user({.token = token}) == "anna");
  CHECK(user({.tls = true, .certificate = ben}) == "ben");
  CHECK(user({.tls = true, .certificate = ben, .token = token}) == "mismatch");
  CHECK(user({.unix_tenant = "course", .unix_user = "carol"}) == "carol");
  CHECK(user({.open_tenant = "open"}).empty());
}

TEST_CASE("an invalid credential is refused, whatever else would do") {
  Book registry;
  Shown shown{
      .tls = true, .certificate = kAlice, .token = registry.token, .unix_tenant = "anna", .open_tenant = "open"};
  CHECK(outcome(shown, &registry.credentials) == "mismatch");
  shown.token = "wrong";
  CHECK(outcome(shown, &registry.credentials) == "token");
  shown.token.clear();
  shown.certificate->verify_error = X509_V_ERR_CERT_HAS_EXPIRED;
  CHECK(outcome(shown, &registry.credentials) == "expired");
  shown.certificate->verify_error = X509_V_ERR_INVALID_PURPOSE;
  CHECK(outcome(shown, &registry.credentials) == "certificate");
  shown.certificate = ShownCertificate{.serial = "0a", .tenant = "bob"};
  CHECK(outcome(shown, &registry.credentials) == "foreign");
  shown.certificate = ShownCertificate{.serial = "0b", .tenant = "alice"};
  CHECK(outcome(shown, &registry.credentials) == "foreign");
  shown.certificate = ShownCertificate{.serial = "0a"};
  CHECK(outcome(shown, &registry.credentials) == "certificate");
}

TEST_CASE("credentials end by the clock and by revocation") {
  Book registry;
  CHECK(outcome({.tls = true, .certificate = kAlice}, &registry.credentials, kNow + 1h) == "expired");
  CHECK(outcome({.token = registry.token}, &registry.credentials, kNow + 1h) == "expired");
  registry.credentials.revoke("alice", false, kNow);
  registry.credentials.revoke("bob", false, kNow);
  CHECK(outcome({.tls = true, .certificate = kAlice}, &registry.credentials) == "revoked");
  CHECK(outcome({.token = registry.token}, &registry.credentials) == "revoked");
}

TEST_CASE("a server without an identity knows no certificate and no token") {
  Book registry;
  CHECK(outcome({.tls = true, .certificate = kAlice}, nullptr) == "foreign");
  CHECK(outcome({.token = registry.token, .open_tenant = "open"}, nullptr) == "token");
  CHECK(outcome({.open_tenant = "open"}, nullptr) == "open by plain");
}
