// Tokens, and the register as text.
#include <doctest/doctest.h>

#include "server/identity/register.hpp"

using namespace gpuwire::server;
using namespace std::chrono_literals;

namespace {

const WallTime kNow = std::chrono::system_clock::from_time_t(1'800'000'000);

Credential token_of(const std::string& tenant, const std::string& token, WallTime expires = kNow + 24h) {
  TokenHash hash = hash_token(token);
  return {.kind = CredentialKind::token,
          .id = token_id(hash),
          .tenant = tenant,
          .issued = kNow,
          .expires = expires,
          .hash = hash};
}

Credential certificate_of(const std::string& tenant, const std::string& serial) {
  return {.kind = CredentialKind::certificate, .id = serial, .tenant = tenant, .issued = kNow, .expires = kNow + 24h};
}

}  // namespace

TEST_CASE("tokens are 256 bits, never the same, and have one form") {
  std::string one = new_token().value(), other = new_token().value();
  CHECK(one != other);
  CHECK(one.size() == kTokenBytes);
  CHECK(one.starts_with("gpuwire_"));
  CHECK(one.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") == std::string::npos);
}

TEST_CASE("a token is found by its whole text only") {
  Register credentials;
  std::string alice = new_token().value(), bob = new_token().value();
  REQUIRE(credentials.add(token_of("alice", alice)));
  REQUIRE(credentials.add(token_of("bob", bob)));
  REQUIRE(credentials.find_token(alice));
  CHECK(credentials.find_token(alice)->tenant == "alice");
  CHECK(credentials.find_token(bob)->tenant == "bob");
  CHECK_FALSE(credentials.find_token(alice.substr(0, alice.size() - 1)));
  CHECK_FALSE(credentials.find_token(alice + " "));
  CHECK_FALSE(credentials.find_token(""));
  CHECK_FALSE(credentials.find_token(to_hex(hash_token(alice))));  // the stored hash is no token
}

TEST_CASE("the register's text has no token in it and reads back the same") {
  Register credentials;
  std::string token = new_token().value();
  credentials.add(token_of("alice", token));
  credentials.add(certificate_of("bob", "00ff"));
  credentials.revoke("bob", true, kNow + 1h);
  std::string text = credentials.text();
  CHECK(text.find(token) == std::string::npos);
  CHECK(text.find(token.substr(8, 20)) == std::string::npos);
  Register again = Register::parse(text).value();
  CHECK(again.text() == text);
  CHECK(again.find_token(token)->tenant == "alice");
  const Credential* bob = again.find(CredentialKind::certificate, "00ff");
  REQUIRE(bob);
  CHECK(bob->revoked == kNow + 1h);
  CHECK(bob->end_sessions);
}

TEST_CASE("a tenant's name revokes all that it has, an id only that one") {
  Register credentials;
  credentials.add(certificate_of("alice", "0a"));
  credentials.add(certificate_of("alice", "0b"));
  credentials.add(certificate_of("bob", "0c"));
  CHECK(credentials.revoke("0a", false, kNow).size() == 1);
  CHECK(credentials.revoke("0a", false, kNow + 1h).empty());
  CHECK(credentials.find(CredentialKind::certificate, "0a")->revoked == kNow);
  CHECK(credentials.revoke("alice", false, kNow).size() == 1);
  CHECK_FALSE(credentials.find(CredentialKind::certificate, "0c")->revoked);
  CHECK_FALSE(credentials.knows("carol"));
}

TEST_CASE("a user's name revokes what that user of that tenant has, and reads back") {
  Register credentials;
  const auto add = [&](const char* id, const char* tenant, const char* user) {
    REQUIRE(credentials.add(
        {.id = id, .tenant = tenant, .user = user, .issued = kNow, .expires = kNow + 1h, .revoked = {}}));
  };
  add("01", "course", "anna"), add("02", "course", "ben"), add("03", "other", "anna"), add("04", "course", "");
  auto back = Register::parse(credentials.text());
  REQUIRE(back.has_value());
  CHECK(back->credentials()[0].user == "anna");
  CHECK(back->credentials()[3].user.empty());
  CHECK(back->knows("course/ben"));
  CHECK_FALSE(back->knows("course/"));
  CHECK_FALSE(back->knows("anna"));
  REQUIRE(back->revoke("course/anna", false, kNow).size() == 1);
  CHECK(back->find("01")->revoked);
  CHECK_FALSE(back->find("03")->revoked);
  CHECK(back->revoke("course", false, kNow).size() == 2);
  std::string bad = credentials.text();
  bad.replace(bad.find("\"ben\""), 5, "\"../\"");
  auto refused = Register::parse(bad);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().find("is not a user name") != std::string::npos);
}

TEST_CASE("sessions of a credential that was revoked before can still be ended") {
  Register credentials;
  credentials.add(certificate_of("alice", "0a"));
  credentials.revoke("alice", false, kNow);
  CHECK(credentials.revoke("alice", true, kNow + 1h).empty());
  CHECK(credentials.find(CredentialKind::certificate, "0a")->end_sessions);
}

TEST_CASE("why a credential does not count is said in words") {
  Credential one = certificate_of("alice", "0a");
  CHECK(why_invalid(one, kNow).empty());
  CHECK(why_invalid(one, kNow + 24h) == "expired on 2027-01-16 08:00 UTC");
  one.revoked = kNow;
  CHECK(why_invalid(one, kNow) == "was revoked on 2027-01-15 08:00 UTC");
}

TEST_CASE("a register that cannot be is refused with the entry and the reason") {
  auto error_of = [](const std::string& text) { return Register::parse(text).error(); };
  const std::string entry =
      R"({"kind":"certificate","id":"0a","tenant":"alice","issued":"2026-01-01T00:00:00Z","expires":"2027-01-01T00:00:00Z"})";
  auto with = [](const std::string& entries) { return R"({"format":1,"credentials":[)" + entries + "]}"; };
  CHECK(Register::parse(with(entry)));
  CHECK(error_of("") == "no JSON object");
  CHECK(error_of("[]") == "no JSON object");
  CHECK(error_of("{}") == "its format is not 1");
  CHECK(error_of(R"({"format":2,"credentials":[]})") == "its format is not 1");
  CHECK(error_of(R"({"format":1,"credentials":{}})") == "it has no list \"credentials\"");
  CHECK(error_of(with(entry + "," + entry)) == "credential 2: a second one with the id 0a");
  CHECK(error_of(with("7")) == "credential 1: no object");
  auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = entry;
    return with(text.replace(text.find(from), from.size(), to));
  };
  CHECK(error_of(changed("certificate", "password")) == "credential 1: kind \"password\" is unknown");
  CHECK(error_of(changed("alice", "a/b")) == "credential 1: \"a/b\" is not a tenant name");
  CHECK(error_of(changed("2027-01-01T00:00:00Z", "soon")) ==
        "credential 1: \"expires\" is \"soon\", which is not a time");
  CHECK(error_of(changed("\"0a\"", "7")) == "credential 1: \"id\" is missing or no text");
  CHECK(error_of(changed("\"certificate\"", "\"token\",\"sha256\":\"zz\"")) ==
        "credential 1: \"sha256\" is not a SHA-256");
}

TEST_CASE("a job's tokens are revoked together, and those of other jobs and of people are left alone") {
  Register credentials;
  std::string first = new_token().value(), second = new_token().value(), other = new_token().value(),
              person = new_token().value();
  for (const auto& [token, job] :
       {std::pair(first, "slurm/lab/17"), std::pair(second, "slurm/lab/17"), std::pair(other, "slurm/lab/18")}) {
    Credential credential = token_of("anna", token);
    credential.job = job;
    credential.gpus = 2;
    REQUIRE(credentials.add(credential));
  }
  REQUIRE(credentials.add(token_of("anna", person)));
  Register again = Register::parse(credentials.text()).value();
  CHECK(again.find_token(first)->job == "slurm/lab/17");
  CHECK(again.find_token(first)->gpus == 2);
  CHECK(again.find_token(person)->job.empty());
  CHECK(again.revoke_job("slurm/lab/17", true, kNow).size() == 2);
  CHECK(again.revoke_job("slurm/lab/17", true, kNow).empty());
  CHECK(again.revoke_job("", true, kNow).empty());
  CHECK(again.find_token(second)->end_sessions);
  CHECK_FALSE(again.find_token(other)->revoked);
  CHECK_FALSE(again.find_token(person)->revoked);
}

TEST_CASE("tokens of jobs that are over are forgotten, and nothing else is") {
  Register credentials;
  std::string over = new_token().value(), expired = new_token().value(), runs = new_token().value(),
              person = new_token().value();
  for (const auto& [token, expires] :
       {std::pair(over, kNow + 24h), std::pair(expired, kNow - 2h), std::pair(runs, kNow + 24h)}) {
    Credential credential = token_of("anna", token, expires);
    credential.job = token.substr(8, 8);
    credential.gpus = 1;
    REQUIRE(credentials.add(credential));
  }
  REQUIRE(credentials.add(token_of("anna", person, kNow - 24h)));
  credentials.revoke_job(over.substr(8, 8), false, kNow - 3h);
  credentials.forget_jobs(kNow - 1h);
  CHECK_FALSE(credentials.find_token(over));
  CHECK_FALSE(credentials.find_token(expired));
  CHECK(credentials.find_token(runs));
  CHECK(credentials.find_token(person));
}

TEST_CASE("a register with a job that cannot be is not read") {
  Register credentials;
  Credential credential = token_of("anna", new_token().value());
  credential.job = "17";
  credential.gpus = 1;
  credentials.add(credential);
  std::string text = credentials.text();
  auto with = [&](std::string_view from, std::string_view to) {
    return std::string(text).replace(text.find(from), from.size(), to);
  };
  CHECK(Register::parse(text));
  CHECK_FALSE(Register::parse(with("\"17\"", "\"1 7\"")));
  CHECK_FALSE(Register::parse(with("\"17\"", "\"\"")));
  CHECK_FALSE(Register::parse(with("\"gpus\": 1", "\"gpus\": 0")));
  CHECK_FALSE(Register::parse(with("\"gpus\": 1", "\"gpus\": \"1\"")));
}
