// Which ends are told, and in which words.
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
  const Expiry token{
      .of = Expiry::Of::tenant, .tenant = "bob", .kind = CredentialKind::token, .expires = kNow + 2 * kDay};
  CHECK(expiry_line(token, kNow) ==
        "the token of tenant bob expires on 2027-01-17 08:00 UTC, in 2 days: gpuwire admin add-tenant bob --token");
}

TEST_CASE("of a tenant the credential that counts longest is told, and neither revoked ones nor those of jobs") {
  Register credentials;
  credentials.add(credential("anna", "1", kNow + 3 * kDay));
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
  CHECK(found[0].tenant == "anna");
  CHECK(found[0].expires == kNow + 300 * kDay);
  CHECK(found[1].tenant == "ben");
  CHECK(found[1].expires == kNow + 3 * kDay);
  CHECK(found[2].tenant == "emil");
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
  CHECK(ends() == std::vector<long>{1000, 100, 50});
  CHECK_FALSE(expiries(temporary.path() / "nowhere", kNow));
}
