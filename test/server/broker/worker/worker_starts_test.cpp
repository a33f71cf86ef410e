#include <map>
#include <random>

#include <doctest/doctest.h>

#include "server/broker/worker/worker_starts.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using scheduler::SessionId;

namespace {

constexpr WorkerStarts::Time kNow{std::chrono::hours(1)};

// Starts all due workers; returns their number for each pool.
std::map<WorkerStarts::Pool, size_t> start_all(WorkerStarts& starts, pid_t& last, WorkerStarts::Time now = kNow) {
  std::map<WorkerStarts::Pool, size_t> started;
  while (auto pool = starts.next(now)) {
    starts.begun(*pool, ++last, now);
    ++started[*pool];
  }
  return started;
}

// "anna" asks for sessions 1 to `count` of the pool.
void flood(WorkerStarts& starts, WorkerStarts::Pool pool, uint64_t count) {
  for (uint64_t number = 1; number <= count; ++number) starts.wait(pool, SessionId(number), "anna");
}

}  // namespace

TEST_CASE("the least recently served tenant gets the next worker, whoever has asked first and for how many") {
  WorkerStarts starts;
  flood(starts, 1, 10);
  CHECK(starts.take(1) == SessionId(1));
  starts.wait(1, SessionId(20), "ben");
  starts.wait(1, SessionId(21), "ben");
  starts.wait(1, SessionId(30), "carl");
  CHECK(starts.take(1) == SessionId(20));
  CHECK(starts.take(1) == SessionId(30));
  CHECK(starts.take(1) == SessionId(2));
  CHECK(starts.take(1) == SessionId(21));
  CHECK(starts.take(1) == SessionId(3));
  starts.leave(SessionId(4));
  CHECK(starts.take(1) == SessionId(5));
}

TEST_CASE("a session that has lost its worker comes before the others of its tenant") {
  WorkerStarts starts;
  flood(starts, 1, 3);
  starts.wait(1, SessionId(9), "anna", true);
  starts.wait(1, SessionId(20), "ben");
  CHECK(starts.take(1) == SessionId(9));
  CHECK(starts.take(1) == SessionId(20));
  CHECK(starts.take(1) == SessionId(1));
}

TEST_CASE("a worker goes to a session of its own pool") {
  WorkerStarts starts;
  starts.wait(1, SessionId(1), "anna");
  CHECK_FALSE(starts.take(2));
  CHECK(starts.take(1) == SessionId(1));
  CHECK_FALSE(starts.take(1));
}

TEST_CASE("no more start at once than may, and the next place goes to the pool of the tenant whose turn it is") {
  WorkerStarts starts({.parallel_max = 4});
  pid_t last = 0;
  for (WorkerStarts::Pool pool : {1u, 2u}) starts.wish(pool, true, 0);
  flood(starts, 1, 10);
  CHECK(start_all(starts, last) == std::map<WorkerStarts::Pool, size_t>{{1, 4}});
  starts.wait(2, SessionId(20), "ben");
  CHECK_FALSE(starts.next(kNow));
  starts.settled(1);
  CHECK(starts.take(1) == SessionId(1));
  CHECK(start_all(starts, last) == std::map<WorkerStarts::Pool, size_t>{{2, 1}});
  CHECK(starts.in_progress() == 4);
}

TEST_CASE("one worker is started for each session that waits, and prewarmed workers when nobody waits for more") {
  WorkerStarts starts({.parallel_max = 5, .for_sessions = 0});
  pid_t last = 0;
  starts.wish(1, true, 2);
  starts.wish(2, true, 1);
  flood(starts, 2, 3);
  CHECK(start_all(starts, last) == std::map<WorkerStarts::Pool, size_t>{{1, 2}, {2, 3}});
  starts.settled(1);
  CHECK(start_all(starts, last) == std::map<WorkerStarts::Pool, size_t>{{2, 1}});
}

TEST_CASE("prewarmed workers leave places to sessions that come while they start") {
  WorkerStarts starts({.parallel_max = 5, .for_sessions = 2});
  pid_t last = 0;
  starts.wish(1, true, 8);
  starts.wish(2, true, 0);
  CHECK(start_all(starts, last) == std::map<WorkerStarts::Pool, size_t>{{1, 3}});
  flood(starts, 2, 3);
  CHECK(start_all(starts, last) == std::map<WorkerStarts::Pool, size_t>{{2, 2}});
  // The third session comes before any further prewarmed worker.
  starts.settled(1);
  CHECK(start_all(starts, last) == std::map<WorkerStarts::Pool, size_t>{{2, 1}});
}

TEST_CASE("a pool that may not start any keeps nobody else from starting") {
  WorkerStarts starts({.parallel_max = 2});
  pid_t last = 0;
  starts.wish(1, false, 3);
  starts.wish(2, true, 0);
  flood(starts, 1, 5);
  starts.wait(2, SessionId(20), "ben");
  CHECK(start_all(starts, last) == std::map<WorkerStarts::Pool, size_t>{{2, 1}});
  starts.forget(1);
  CHECK_FALSE(starts.next(kNow));
}

TEST_CASE("starts that hang hold up the others for a bounded time") {
  WorkerStarts starts({.parallel_max = 2, .hold = std::chrono::seconds(5)});
  pid_t last = 0;
  for (WorkerStarts::Pool pool : {1u, 2u}) starts.wish(pool, true, 0);
  flood(starts, 1, 2);
  CHECK(start_all(starts, last).at(1) == 2);
  starts.wait(2, SessionId(20), "ben");
  CHECK_FALSE(starts.next(kNow));
  REQUIRE(starts.next_change(kNow) == kNow + std::chrono::seconds(5));
  CHECK(starts.next(kNow + std::chrono::seconds(5)) == WorkerStarts::Pool(2));
  CHECK_FALSE(starts.next_change(kNow + std::chrono::seconds(5)));
}

TEST_CASE("nobody starves: between two workers for one tenant, each other that waits gets one") {
  std::mt19937 random(20261123);
  WorkerStarts starts({.parallel_max = 3});
  starts.wish(1, true, 0);
  uint64_t number = 0;
  std::map<SessionId, std::string> tenant_of;
  std::map<std::string, size_t> waiting, passed_over;  // since its last turn or its arrival
  for (int step = 0; step < 20'000; ++step) {
    // Anna always has forty waiting sessions, the others come and go.
    std::string tenant = random() % 4 ? "anna" : std::string(1, char('b' + random() % 5));
    if (waiting[tenant] < (tenant == "anna" ? 40 : 2)) {
      starts.wait(1, SessionId(++number), tenant);
      tenant_of[SessionId(number)] = tenant;
      if (waiting[tenant]++ == 0) passed_over[tenant] = 0;
    }
    if (random() % 3) continue;
    auto chosen = starts.take(1);
    if (!chosen) continue;
    const std::string served = tenant_of.at(*chosen);
    --waiting[served];
    passed_over[served] = 0;
    for (auto& [other, count] : waiting) {
      if (other != served && count != 0) REQUIRE(++passed_over[other] <= 5);  // the other tenants
    }
  }
  CHECK(number > 1000);
}
