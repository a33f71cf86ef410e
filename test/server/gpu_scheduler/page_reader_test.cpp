#include "server/gpu_scheduler/page_reader.hpp"

#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include <doctest/doctest.h>

using namespace gpuwire::server;
using namespace std::chrono_literals;

TEST_CASE("an honest worker's figures are read as they are") {
  SessionPage page;
  PageReader reader(1000s);
  page.waiting = 1;
  page.in_flight = 1;
  page.started = 3;
  page.first_start = std::chrono::nanoseconds(1005s).count();
  page.last_end = std::chrono::nanoseconds(1006s).count();
  page.busy_ns = uint64_t(std::chrono::nanoseconds(2s).count());
  page.bursts = 4;
  page.submissions = 9;
  page.completions = 8;
  auto said = reader.read(page, 3, 1004s, false, false, 1010s);
  CHECK(said.seen.waiting);
  CHECK(said.seen.in_flight);
  CHECK(said.seen.first_start == PageTime(1005s));
  CHECK(said.seen.last_end == PageTime(1006s));
  CHECK(said.seen.busy == 2s);
  CHECK(said.seen.bursts == 4);
  CHECK(said.seen.submissions == 9);
  CHECK(said.seen.completions == 8);
  CHECK_FALSE(said.damaged);
}

TEST_CASE("a start that belongs to another opening is none") {
  SessionPage page;
  PageReader reader(1000s);
  page.started = 2;
  page.first_start = std::chrono::nanoseconds(1005s).count();
  CHECK(reader.read(page, 3, 1004s, false, false, 1010s).seen.first_start == PageTime{});
}

TEST_CASE("quiet is counted up to the reading") {
  SessionPage page;
  PageReader reader(1000s);
  page.quiet_ns = uint64_t(std::chrono::nanoseconds(1s).count());
  page.quiet_since = std::chrono::nanoseconds(1004s).count();
  CHECK(reader.read(page, 1, 1000s, false, false, 1006s).seen.quiet == 3s);
  page.quiet_ns = uint64_t(std::chrono::nanoseconds(4s).count());
  page.quiet_since = 0;
  CHECK(reader.read(page, 1, 1000s, false, false, 1010s).seen.quiet == 4s);
}

TEST_CASE("work that nobody counts counts as activity") {
  SessionPage page;
  PageReader reader(1000s);
  page.in_flight = 1;
  auto first = reader.read(page, 1, 1000s, true, false, 1001s).seen.submissions;
  CHECK(reader.read(page, 1, 1000s, true, false, 1002s).seen.submissions > first);
}

TEST_CASE(
    "whatever a page says, times lie between the session's begin and now, and counters neither go back nor outrun the "
    "clock") {
  std::mt19937_64 random(20261121);
  SessionPage page;
  PageReader reader(1000s);
  PageTime now = 1000s;
  gpuwire::scheduler::Observation before;
  for (int i = 0; i < 20000; ++i) {
    now += std::chrono::nanoseconds(random() % 1'000'000);
    auto word = [&] {
      return random() % 3 == 0 ? uint64_t(now.count() + int64_t(random() % 2'000'000'000) - 1'000'000'000)
                               : random() >> (random() % 64);
    };
    page.waiting = uint32_t(random() % 2);
    page.in_flight = uint32_t(random() % 2);
    page.started = uint32_t(random() % 3);
    page.first_start = int64_t(word());
    page.last_end = int64_t(word());
    page.stuck_since = int64_t(word());
    page.idle_since = int64_t(word());
    page.busy_ns = word();
    page.quiet_ns = word();
    page.quiet_since = int64_t(word());
    page.bursts += random() % 3;
    page.submissions += random() % 3;
    page.completions += random() % 3;
    auto said = reader.read(page, 1, std::max(now - 1ms, PageTime(1000s)), random() % 2, random() % 2, now);
    const auto& seen = said.seen;
    auto inside = [&](PageTime time) { return time == PageTime{} || (time >= PageTime(1000s) && time <= now); };
    REQUIRE(inside(seen.first_start));
    REQUIRE(inside(seen.last_end));
    REQUIRE(inside(said.stuck_since));
    REQUIRE(inside(said.idle_since));
    REQUIRE(seen.last_end >= before.last_end);
    REQUIRE(seen.busy >= before.busy);
    REQUIRE(seen.busy <= now - PageTime(1000s));
    REQUIRE(seen.quiet >= before.quiet);
    REQUIRE(seen.quiet <= now - PageTime(1000s));
    REQUIRE(seen.bursts >= before.bursts);
    REQUIRE(seen.submissions >= before.submissions);
    before = seen;
  }
}

TEST_CASE("a page that holds what no worker writes is damaged from then on, and says nothing any more") {
  const std::vector<std::function<void(SessionPage&)>> damages = {
      [](SessionPage& page) { page.waiting = 2; },
      [](SessionPage& page) { page.in_flight = 0xffffffff; },
      [](SessionPage& page) { page.submissions = 99; },          // less than before
      [](SessionPage& page) { page.submissions = UINT64_MAX; },  // the next reading would begin at zero
      [](SessionPage& page) { page.completions = UINT64_MAX - 1; },
      [](SessionPage& page) { page.bursts = uint64_t{1} << 40; },  // more than a worker can count in this time
  };
  for (const auto& damage : damages) {
    SessionPage page;
    PageReader reader(1000s);
    page.in_flight = 1;
    page.submissions = page.completions = page.bursts = 100;
    CHECK_FALSE(reader.read(page, 1, 1000s, true, false, 1001s).damaged);
    damage(page);
    CHECK(reader.read(page, 1, 1000s, true, false, 1002s).damaged);
    page.waiting = page.in_flight = 1;
    page.submissions = page.completions = page.bursts = 101;
    auto said = reader.read(page, 1, 1000s, true, false, 1003s);
    CHECK(said.damaged);
    CHECK_FALSE(said.seen.in_flight);
    CHECK_FALSE(said.seen.waiting);
    CHECK(said.seen.submissions <= 102);
  }
}
