// Sign-ins to the web page: visitors, credentials, expiry.
#include "server/control/web/sign_ins.hpp"

#include <set>

#include <doctest/doctest.h>

using namespace gpuwire::server;

namespace {

struct Door {
  std::chrono::steady_clock::time_point now{std::chrono::hours(100)};
  std::set<std::string> revoked;
  SignIns sign_ins{{.of_token = [](const std::string& token) -> WebCredentials::Owner {
                      if (token.starts_with("token of "))
                        return WebVisitor{token.substr(9), "id of " + token.substr(9)};
                      return tl::unexpected(std::string("no token"));
                    },
                    .of_certificate = [this](const ShownCertificate& certificate,
                                             const std::string& token) -> WebCredentials::Owner {
                      if (revoked.contains(certificate.serial)) return tl::unexpected(std::string("revoked"));
                      if (!token.empty() && token != "token of " + certificate.tenant)
                        return tl::unexpected(std::string("another tenant's token"));
                      return WebVisitor{certificate.tenant, certificate.serial};
                    },
                    .counts = [this](const WebVisitor& visitor) { return !revoked.contains(visitor.credential); }},
                   [this] { return now; }};
  std::string grant(const std::string& tenant) {
    auto made = sign_ins.make_grant({.serial = "serial of " + tenant, .tenant = tenant});
    return made ? made->text : std::string();
  }
  std::string enter(const std::string& secret, const std::string& grant = {}) {
    auto ticket = sign_ins.sign_in(secret, grant);
    return ticket ? ticket->text : std::string();
  }
};

}  // namespace

TEST_CASE("a token signs its tenant in, and what is none signs nobody in") {
  Door door;
  const std::string ticket = door.enter("token of anna");
  REQUIRE(door.sign_ins.find(ticket));
  CHECK(door.sign_ins.find(ticket)->tenant == "anna");
  CHECK_FALSE(door.sign_ins.find(ticket)->administrator());
  CHECK(door.enter("guess").empty());
  CHECK(door.enter("").empty());
  CHECK(door.enter("token of " + std::string(300, 'a')).empty());
  for (const std::string& other : {std::string(), ticket + "x", ticket.substr(1), std::string("token of anna")})
    CHECK(door.sign_ins.find(other) == nullptr);
}

TEST_CASE("a code signs an administrator in once, and within ten minutes") {
  Door door;
  const std::string code = door.sign_ins.make_code().value();
  const std::string ticket = door.enter(code);
  REQUIRE(door.sign_ins.find(ticket));
  CHECK(door.sign_ins.find(ticket)->administrator());
  CHECK(door.enter(code).empty());
  const std::string late = door.sign_ins.make_code().value();
  door.now += kWebCodeTime + std::chrono::seconds(1);
  CHECK(door.enter(late).empty());
  const std::string first = door.sign_ins.make_code().value();
  for (size_t i = 0; i < kWebCodesMax; ++i)
    door.now += std::chrono::seconds(1), static_cast<void>(door.sign_ins.make_code());
  CHECK(door.enter(first).empty());
}

TEST_CASE("a sign-in ends when it is not used, after half a day, by signing out, and with its token") {
  Door door;
  std::string ticket = door.enter("token of anna");
  door.now += kWebSignInIdle - std::chrono::seconds(1);
  CHECK(door.sign_ins.find(ticket));
  door.now += kWebSignInIdle + std::chrono::seconds(1);
  CHECK_FALSE(door.sign_ins.find(ticket));

  ticket = door.enter("token of anna");
  for (auto used = kWebSignInIdle / 2; used <= kWebSignInWhole; used += kWebSignInIdle / 2) {
    door.now += kWebSignInIdle / 2;
    CHECK(door.sign_ins.find(ticket));
  }
  door.now += std::chrono::minutes(1);
  CHECK_FALSE(door.sign_ins.find(ticket));

  ticket = door.enter("token of anna");
  door.sign_ins.sign_out(ticket);
  CHECK_FALSE(door.sign_ins.find(ticket));

  ticket = door.enter("token of anna");
  door.revoked.insert("id of anna");
  CHECK_FALSE(door.sign_ins.find(ticket));
  CHECK(door.sign_ins.count() == 0);
}

TEST_CASE("a tenant that signs in again and again loses its own oldest sign-in, and nobody else's") {
  Door door;
  const std::string ben = door.enter("token of ben"), first = door.enter("token of anna");
  for (size_t i = 0; i < kWebSignInsPerTenantMax; ++i) door.now += std::chrono::seconds(1), door.enter("token of anna");
  CHECK(door.sign_ins.find(ben));
  CHECK_FALSE(door.sign_ins.find(first));
  CHECK(door.sign_ins.count() == kWebSignInsPerTenantMax + 1);
  for (size_t i = 0; i < 2 * kWebSignInsMax; ++i) door.enter("token of " + std::to_string(i));
  CHECK(door.sign_ins.count() == kWebSignInsMax);
}

TEST_CASE("a certificate that was shown signs its tenant in, as often as wanted, until it does not count any more") {
  Door door;
  const std::string grant = door.grant("anna");
  for (int i = 0; i < 3; ++i) {
    const std::string ticket = door.enter("", grant);
    REQUIRE(door.sign_ins.find(ticket));
    CHECK(*door.sign_ins.find(ticket) == WebVisitor{"anna", "serial of anna"});
  }
  // A grant is no secret of a form, and a ticket is no grant.
  CHECK(door.enter(grant).empty());
  CHECK(door.enter("", door.enter("", grant)).empty());
  CHECK(door.enter("", "guess").empty());
  const std::string ticket = door.enter("", grant);
  door.revoked.insert("serial of anna");
  CHECK(door.sign_ins.find(ticket) == nullptr);
  CHECK(door.enter("", grant).empty());
  CHECK(door.grant("anna").empty());
}

TEST_CASE("a token beside a certificate is of the same tenant or refused, and a code is an administrator's") {
  Door door;
  const std::string grant = door.grant("anna");
  CHECK_FALSE(door.enter("token of anna", grant).empty());
  CHECK(door.enter("token of ben", grant).empty());
  CHECK(door.enter("guess", grant).empty());
  const std::string ticket = door.enter(door.sign_ins.make_code().value(), grant);
  REQUIRE(door.sign_ins.find(ticket));
  CHECK(door.sign_ins.find(ticket)->administrator());
}

TEST_CASE("connections with certificates are bounded, and one tenant's take no places of others'") {
  Door door;
  const std::string anna = door.grant("anna");
  std::string first = door.grant("ben");
  for (size_t i = 0; i < kWebGrantsPerTenantMax; ++i) {
    door.now += std::chrono::seconds(1);
    static_cast<void>(door.grant("ben"));
  }
  CHECK(door.enter("", first).empty());
  CHECK_FALSE(door.enter("", anna).empty());
  for (size_t i = 0; i < kWebGrantsMax; ++i) {
    door.now += std::chrono::seconds(1);
    static_cast<void>(door.grant("tenant " + std::to_string(i)));
  }
  CHECK(door.enter("", anna).empty());
}
