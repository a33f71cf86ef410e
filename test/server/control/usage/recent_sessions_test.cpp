// The sessions that ended last, with their waits, from the lines of the audit log.
#include "server/control/usage/recent_sessions.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

using namespace gpuwire::server;

namespace {

std::string ended(uint64_t session, const std::string& tenant, int hour) {
  return fmt::format(R"({{"time":"2026-11-23T{:02}:00:00.000Z","event":"ended","session":{},"tenant":"{}","program":)"
                     R"("train","host":"desk","gpus":[0,2],"cause":"finished","seconds":600,"gpu_seconds":90.5}})",
                     hour, session, tenant);
}

std::string admitted(uint64_t session, const std::string& reason) {
  return fmt::format(R"({{"time":"2026-11-23T09:00:00.000Z","event":"admitted","session":{},"tenant":"anna",)"
                     R"("waited_seconds":146.5,"waited_for":"{}"}})",
                     session, reason);
}

}  // namespace

TEST_CASE("a session that has ended is known with its GPUs, its times, and how long and for what it waited") {
  RecentSessions sessions;
  sessions.add_line(admitted(7, "the GPUs have reached their limit of sessions"));
  sessions.add_line(ended(7, "anna", 12));
  sessions.add_line(ended(8, "anna", 13));
  const auto found = sessions.newest("anna", 10);
  REQUIRE(found.size() == 2);
  CHECK(found[0]->session == 8);  // the last end first
  CHECK(found[0]->waited_for == "");
  CHECK(found[1]->program == "train");
  CHECK(found[1]->gpus == std::vector<unsigned>{0, 2});
  CHECK(found[1]->ended_unix_s - found[1]->begun_unix_s == doctest::Approx(600));
  CHECK(found[1]->gpu_s == doctest::Approx(90.5));
  CHECK(found[1]->waited_s == doctest::Approx(146.5));
  CHECK(found[1]->waited_for == "the GPUs have reached their limit of sessions");
}

TEST_CASE("a wait belongs to one session: a later one of the same number has its own, or none") {
  RecentSessions sessions;
  sessions.add_line(admitted(7, "no GPU is free"));
  sessions.add_line(ended(7, "anna", 12));
  sessions.add_line(ended(7, "anna", 13));
  CHECK(sessions.newest("anna", 1).front()->waited_for == "");
}

TEST_CASE("each tenant has its last sessions, however many others have") {
  RecentSessions sessions;
  sessions.add_line(ended(1, "anna", 1));
  for (uint64_t i = 0; i < 3 * kRecentPerTenantMax; ++i) sessions.add_line(ended(2 + i, "ben", 2));
  CHECK(sessions.newest("anna", 10).size() == 1);
  const auto of_ben = sessions.newest("ben", 1000);
  CHECK(of_ben.size() == kRecentPerTenantMax);
  CHECK(of_ben.back()->session == 2 + 2 * kRecentPerTenantMax);
  CHECK(sessions.newest("", 1000).size() == kRecentPerTenantMax + 1);
  CHECK(sessions.newest("", 10).size() == 10);
  CHECK(sessions.newest("carl", 10).empty());
}

TEST_CASE("the number of tenants and of waits without an end is bounded") {
  RecentSessions sessions;
  for (uint64_t i = 1; i <= kRecentWaitsMax + 1; ++i) sessions.add_line(admitted(i, "no GPU is free"));
  sessions.add_line(ended(1, "anna", 1));
  sessions.add_line(ended(2, "anna", 2));
  CHECK(sessions.newest("anna", 2)[1]->waited_for == "");
  CHECK(sessions.newest("anna", 2)[0]->waited_for == "no GPU is free");
  for (size_t i = 0; i < kRecentTenantsMax; ++i) sessions.add_line(ended(3, fmt::format("tenant{}", i), 3));
  CHECK(sessions.newest("anna", 1).empty());
  CHECK(sessions.newest("tenant0", 1).size() == 1);
}

TEST_CASE("other lines, and lines that are none, change nothing") {
  RecentSessions sessions;
  for (const char* line :
       {"", "ended", "{", R"({"event":"admitted","session":1,"waited_for":"x)",
        R"({"event":"admitted","session":-1,"waited_for":"x"})", R"({"event":"begun","session":1,"waited_for":"x"})",
        R"({"event":"ended","tenant":"anna","time":"yesterday at noon","session":1})",
        R"({"event":"ended","time":"2026-11-23T12:00:00.000Z","session":1})"})
    sessions.add_line(line);
  CHECK(sessions.newest("", 10).empty());
  sessions.add_line(ended(1, "anna", 12));
  CHECK(sessions.newest("", 10).front()->waited_for == "");
}
