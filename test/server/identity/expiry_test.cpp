// The reported expiries and their texts.
#include "server/identity/expiry.hpp"

#include <doctest/doctest.h>

#include "server/identity/administration.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire::server;
using namespace std::chrono_literals;

namespace {

const WallTime kNow = std::chrono::system_clock::from_time_t(1'800'000'000);
constexpr auto kDay = 24h;

Credential credential(const char* tenant, const char* id, WallTime expires) {
  return {.kind = CredentialKind::certificate, .id = id, .tenant = tenant, .issued = kNow - kDay, .expires = expires};
}

}  // namespace

TEST_CASE("an end is told from 30 days before it on, with what to do") {
  Expiry server{.of = Expiry::Of::server, .tenant = {}, .expires = kNow + 31 * kDay};
  CHECK(expiry_line(server, kNow) == "");
  server.expires = kNow + 12 * kDay + 1h;
  CHECK(expiry_line(server, kNow) ==
        "the server's certificate expires on 2027-01-27 09:00 UTC, in 12 days: gpuwire admin renew");
  server.expires = kNow + kDay;
  CHECK(expiry_line(server, kNow).find(", in 1 day: ") != std::string::npos);
  server.expires = kNow + 1h;
  CHECK(expiry_line(server, kNow).find(", in less than a day: ") != std::string::npos);
  server.expires = kNow;
  CHECK(expiry_line(server, kNow).find("certificate expired on 2027-01-15 08:00 UTC: ") != std::string::npos);
  server.expires = WallTime::max();
  CHECK(expiry_line(server, kNow) == "");
  const Expiry authority{.of = Expiry::Of::authority, .tenant = {}, .expires = kNow + kDay};
  CHECK(expiry_line(authority, kNow).ends_with(": gpuwire admin renew --ca"));
  const Expiry page{.of = Expiry::Of::page, .tenant = {}, .expires = kNow + 12 * kDay + 1h};
  CHECK(expiry_line(page, kNow) ==
        "the web page's certificate expires on 2027-01-27 09:00 UTC, in 12 days: put a new one in the place of "
        "web_certificate and web_key");
  const Expiry token{
      .of = Expiry::Of::tenant, .tenant = "bob", .kind = CredentialKind::token, .expires = kNow + 2 * kDay};
  CHECK(expiry_line(token, kNow) ==
        "the token of tenant bob expires on 2027-01-17 08:00 UTC, in 2 days: gpuwire admin add-tenant bob --token");
  Expiry of_user{.of = Expiry::Of::tenant, .tenant = "course", .user = "anna", .expires = kNow + 2 * kDay};
  CHECK(expiry_line(of_user, kNow) ==
        "the certificate of tenant course for user anna expires on 2027-01-17 08:00 UTC, in 2 days: "
        "gpuwire admin add-tenant course --user anna");
  of_user.renewed = true;
  CHECK(expiry_line(of_user, kNow) == "");
}

TEST_CASE("each credential is told, and one is renewed by a later one of its owner and kind alone") {
  Register credentials;
  auto add = [&](const char* tenant, const char* user, CredentialKind kind, const char* id, WallTime expires) {
    Credential one = credential(tenant, id, expires);
    one.user = user, one.kind = kind;
    REQUIRE(credentials.add(one));
  };
  constexpr auto certificate = CredentialKind::certificate, token = CredentialKind::token;
  add("course", "ben", certificate, "1", kNow + 3 * kDay);
  add("course", "anna", certificate, "2", kNow + 300 * kDay);
  add("course", "anna", certificate, "3", kNow + 4 * kDay);
  add("course", "anna", token, "4", kNow + 5 * kDay);
  add("course", "", certificate, "5", kNow + 400 * kDay);
  std::vector<std::string> told;
  for (const Expiry& one : expiries_of(credentials, kNow))
    told.push_back(one.tenant + "/" + one.user + " " + name_of(one.kind) + " " + one.id +
                   (one.renewed ? " renewed" : ""));
  CHECK(told == std::vector<std::string>{"course/ certificate 5", "course/anna certificate 3 renewed",
                                         "course/anna certificate 2", "course/anna token 4",
                                         "course/ben certificate 1"});
}

TEST_CASE("neither revoked credentials nor those of jobs are told, nor what ended long ago or was renewed in time") {
  Register credentials;
  credentials.add(credential("anna", "1", kNow - kDay));
  credentials.add(credential("anna", "2", kNow + 300 * kDay));
  credentials.add(credential("ben", "3", kNow + 3 * kDay));
  Credential revoked = credential("ben", "4", kNow + 300 * kDay);
  revoked.revoked = kNow;
  credentials.add(revoked);
  Credential job = credential("carl", "5", kNow + kDay);
  job.kind = CredentialKind::token;
  job.job = "slurm/a/1";
  credentials.add(job);
  credentials.add(credential("dora", "6", kNow - 31 * kDay));
  credentials.add(credential("emil", "7", kNow - 29 * kDay));
  auto found = expiries_of(credentials, kNow);
  REQUIRE(found.size() == 3);
  CHECK(found[0].id == "2");
  CHECK(found[1].id == "3");
  CHECK_FALSE(found[1].renewed);
  CHECK(found[2].id == "7");
}

TEST_CASE("a folder tells of authority, server and tenants, and another date after each is renewed") {
  gpuwire::test::TemporaryDirectory temporary;
  const std::filesystem::path folder = temporary.path() / "identity";
  REQUIRE(init_identity(folder, {.hosts = {"gpu7"}, .authority_days = 20, .server_days = 10}, kNow));
  REQUIRE(add_certificate(folder, "anna", 5, {}, kNow));
  auto ends = [&] {
    std::vector<long> days;
    const auto found = expiries(folder, kNow);
    for (const Expiry& one : found.value())
      days.push_back(std::chrono::duration_cast<std::chrono::days>(one.expires - kNow).count());
    return days;
  };
  CHECK(ends() == std::vector<long>{20, 10, 5});
  REQUIRE(renew_server(folder, {}, false, 100, kNow));
  CHECK(ends() == std::vector<long>{20, 20, 5});  // no longer than the authority
  REQUIRE(renew_authority_of(folder, 1000, kNow));
  REQUIRE(renew_server(folder, {}, false, 100, kNow));
  REQUIRE(add_certificate(folder, "anna", 50, {}, kNow));
  CHECK(ends() == std::vector<long>{1000, 100, 5, 50});
  CHECK_FALSE(expiries(temporary.path() / "nowhere", kNow));
}

TEST_CASE("the end of the web page's certificate is the first certificate's of its file") {
  const gpuwire::test::TemporaryDirectory folder;
  REQUIRE(init_identity(folder.path() / "identity", {.hosts = {"gpu7"}, .server_days = 20}, kNow));
  const auto page = expiry_of_page(folder.path() / "identity" / "server.pem");
  REQUIRE(page);
  CHECK(page->of == Expiry::Of::page);
  CHECK(page->expires == kNow + 20 * kDay);
  const auto none = expiry_of_page(folder.path() / "identity" / "server.key");
  REQUIRE_FALSE(none);
  CHECK(none.error().find("server.key: no certificate can be read") != std::string::npos);
  CHECK_FALSE(expiry_of_page(folder.path() / "nothing"));
}
