#include "test/scheduler/policy_fixture.hpp"

namespace gpuwire::scheduler::test {
namespace {

TEST_CASE("A sole session's gate is open, without a bound, also while it rests") {
  Desk desk;
  desk.tenant(kRed);
  desk.session(kA, kRed);
  desk.decide();
  CHECK(desk.open(kA));
  CHECK(desk.gates[kA].in_flight_max == 0ns);
  desk.work(kA);
  desk.pass(100ms);
  CHECK(desk.open(kA));
  CHECK(desk.gates[kA].in_flight_max == 0ns);
  CHECK(desk.policy.account(kA).regime == Regime::free);
}

TEST_CASE(
    "A session that waits beside one that works is granted after that one's turn, and the work in flight is bounded") {
  Pair desk;
  desk.wait(kA);
  desk.decide();
  CHECK(desk.open(kA));
  desk.work(kA);
  desk.pass(100ms);
  desk.wait(kB);
  desk.decide();
  CHECK_FALSE(desk.open(kB));
  CHECK(desk.open(kA));
  CHECK(desk.gates[kA].in_flight_max == 500us);
  desk.pass(21ms);
  CHECK_FALSE(desk.open(kA));
  CHECK_FALSE(desk.open(kB));  // it has not drained
  desk.wait(kA);
  desk.decide();
  CHECK(desk.open(kB));
}

TEST_CASE("A session that goes quiet keeps its lease for 0.3 ms and no longer when others wait") {
  Pair desk;
  desk.begin_work(kA);
  desk.wait(kB);
  desk.pass(1ms);
  REQUIRE(desk.open(kA));
  desk.rest(kA);
  desk.pass(290us);
  CHECK(desk.open(kA));
  CHECK_FALSE(desk.open(kB));
  desk.pass(20us);
  CHECK_FALSE(desk.open(kA));
  CHECK(desk.open(kB));
}

TEST_CASE("A higher class is let through at the decision at which it comes, and what is below it closes there") {
  Pair desk({.service_class = ServiceClass::batch}, {.service_class = ServiceClass::interactive});
  desk.begin_work(kA);
  desk.pass(5ms);
  desk.wait(kB);
  desk.decide();
  CHECK(desk.open(kB));
  CHECK_FALSE(desk.open(kA));
  CHECK(desk.pages[kA].in_flight);
  desk.work(kB);
  desk.pass(300ms);
  CHECK(desk.open(kB));
  CHECK_FALSE(desk.open(kA));
  desk.wait(kA);
  desk.rest(kB);
  desk.pass(310us);
  CHECK(desk.open(kA));
  CHECK(desk.gates[kA].in_flight_max == Policy::Settings{}.in_flight_max_near_higher);
}

TEST_CASE("Saturating tenants share by their weights") {
  Pair desk({.weight = 3}, {.weight = 1});
  desk.saturate({kA, kB});
  desk.pass(4s);
  CHECK(desk.share_of_red() == doctest::Approx(0.75).epsilon(0.01));
}

TEST_CASE("A tenant's several sessions share its turns") {
  Pair desk;
  desk.session(kC, kBlue);
  desk.session(kD, kBlue);
  desk.saturate({kA, kB, kC, kD});
  desk.pass(4s);
  CHECK(desk.share_of_red() == doctest::Approx(0.5).epsilon(0.02));
  const auto of = [&](SessionId id) {
    return std::chrono::duration<double>(desk.policy.account(id).gpu_time) /
           std::chrono::duration<double>(desk.charged());
  };
  CHECK(of(kB) == doctest::Approx(1.0 / 6).epsilon(0.05));
  CHECK(of(kD) == doctest::Approx(1.0 / 6).epsilon(0.05));
}

TEST_CASE(
    "A kernel that never ends is charged, does not hold up a higher class, and its equals only for a bounded time") {
  Pair desk;
  desk.tenant(kGreen, {.service_class = ServiceClass::interactive});
  desk.session(kC, kGreen);
  desk.begin_work(kA);
  desk.wait(kB);
  desk.pass(25ms);
  CHECK_FALSE(desk.open(kA));
  CHECK_FALSE(desk.open(kB));
  desk.wait(kC);
  desk.decide();
  CHECK(desk.open(kC));
  desk.rest(kC);
  desk.pass(300ms);
  CHECK(desk.open(kB));
  CHECK(desk.policy.gpu_time(kRed, 0) > 200ms);
}

TEST_CASE("Work that does not end is waited for once: from then on others run beside it when their turn comes") {
  Pair desk;
  desk.begin_work(kA);
  desk.hang(kA);
  desk.wait(kB);
  Duration waited{};
  for (; !desk.open(kB) && waited < 1s; waited += 1ms) desk.pass(1ms);
  CHECK(waited <= 250ms);
  // Each time that it comes again, though its old work still stands.
  for (int i = 0; i < 10; ++i) {
    desk.rest(kB);
    desk.pages[kA].waiting = true;
    desk.pass(30ms);
    REQUIRE(desk.open(kA));
    desk.pages[kA].waiting = false;
    desk.wait(kB);
    for (waited = 0ms; !desk.open(kB) && waited < 1s; waited += 1ms) desk.pass(1ms);
    CHECK(waited <= 30ms);
    desk.pass(1ms);
  }
}

namespace {

// Red's work does not end for so long from the closing of its gate on. How long blue, which wants the device all the
// time, was kept waiting for it.
Duration kept_by(Desk& desk, SessionId red, Duration lasts) {
  desk.wait(red);
  for (int step = 0; step < 500 && !desk.open(red); ++step) desk.pass(1ms);
  desk.hang(red);
  for (int step = 0; step < 500 && desk.open(red); ++step) desk.pass(1ms);
  REQUIRE_FALSE(desk.open(red));
  Duration kept{};
  for (Duration lasted{}; lasted < lasts; lasted += 1ms) {
    if (!desk.open(kB)) kept += 1ms;
    desk.pass(1ms);
  }
  desk.stuck[red] = false;
  return kept;
}

// Programs of red come one after the other, each with work that does not end.
Duration kept_by_programs_that_hang(Desk& desk, int programs, Duration lasts) {
  static uint64_t last = 100;
  Duration kept{};
  for (int i = 0; i < programs; ++i) {
    const auto program = SessionId(++last);
    desk.session(program, kRed);
    kept += kept_by(desk, program, lasts);
    desk.end(program);
  }
  return kept;
}

}  // namespace

TEST_CASE("Ends of a session's other work do not hide that a part of its work stands still") {
  Pair desk({}, {.service_class = ServiceClass::scavenger});
  desk.begin_work(kA);
  const Time since = desk.now;
  desk.wait(kB);
  desk.pass(100ms);
  CHECK_FALSE(desk.open(kB));
  desk.pages[kA].stuck_since = since;  // while completions go on
  desk.pass(90ms);
  CHECK_FALSE(desk.open(kB));
  desk.pass(20ms);
  CHECK(desk.open(kB));
}

TEST_CASE("Programs that come one after the other and do not drain are waited for no longer than one of them") {
  // Each is there for longer than anybody is waited for, or goes just before that.
  for (const Duration lives : {300ms, 199ms}) {
    CAPTURE(lives.count());
    Pair desk;
    desk.saturate({kB});
    CHECK(kept_by_programs_that_hang(desk, 10, lives) <= 250ms);
  }
}

TEST_CASE("A tenant whose work ends in time between its programs that hang keeps others for little of their time") {
  Pair desk;
  desk.saturate({kA, kB});
  Duration kept{};
  const Time begin = desk.now;
  for (int i = 0; i < 5; ++i) {
    kept += kept_by_programs_that_hang(desk, 1, 300ms);
    desk.pass(1s);
  }
  CHECK(desk.now - begin > 5s);
  CHECK(kept < 350ms);
}

TEST_CASE("Programs that crash in the middle of their work are waited for as before") {
  Pair desk;
  desk.saturate({kB});
  CHECK(kept_by_programs_that_hang(desk, 10, 1ms) <= 50ms);
  CHECK(kept_by_programs_that_hang(desk, 1, 300ms) > 150ms);
}

TEST_CASE("A tenant's kernels that are long and end are waited for again, though they were not the last time") {
  Pair desk;
  desk.saturate({kB});
  kept_by_programs_that_hang(desk, 1, 300ms);
  const auto waits_for = [&](Duration kernel) {
    const Duration kept = kept_by(desk, kA, kernel);
    desk.rest(kA);
    desk.pass(1s);
    return kept;
  };
  CHECK(waits_for(50ms) < 10ms);
  for (int i = 0; i < 6; ++i) waits_for(50ms);
  CHECK(waits_for(50ms) > 40ms);
}

TEST_CASE("A session whose work ends in time again is waited for again") {
  Pair desk;
  const auto keeps_waiting = [&] {
    desk.begin_work(kA);
    desk.hang(kA);
    desk.wait(kB);
    for (int i = 0; i < 100 && desk.open(kA); ++i) desk.pass(1ms);
    Duration waited{};
    for (; !desk.open(kB) && waited < 1s; waited += 1ms) desk.pass(1ms);
    desk.stuck[kA] = false;
    desk.rest(kA);
    desk.rest(kB);
    desk.pass(100ms);
    return waited;
  };
  CHECK(keeps_waiting() > 150ms);
  CHECK(keeps_waiting() < 10ms);
  desk.pass(7s);
  desk.saturate({kA, kB});
  desk.pass(2s);
  desk.saturating.clear();
  desk.rest(kA);
  desk.rest(kB);
  desk.pass(100ms);
  CHECK(keeps_waiting() > 150ms);
}

namespace {

// Two sessions of red, a scavenger, and one of blue, who goes before them and comes now and then.
struct Siblings : Desk {
  Siblings() {
    tenant(kRed, {.service_class = ServiceClass::scavenger});
    tenant(kBlue, {.service_class = ServiceClass::interactive});
    session(kA, kRed);
    session(kB, kRed);
    session(kC, kBlue);
  }
  void blue_comes() {
    begin_work(kC);
    pass(5ms);
    rest(kC);
    pass(50ms);
  }
  Hold hold(SessionId id) { return policy.account(id).hold; }
};

}  // namespace

TEST_CASE_FIXTURE(Siblings,
                  "Beside other tenants no session is let in while work of another one of its tenant does not end, and "
                  "it is told so") {
  blue_comes();
  begin_work(kA);
  hang(kA);
  pass(1s);
  wait(kB);
  for (int i = 0; i < 20; ++i) {
    blue_comes();
    CHECK_FALSE(open(kB));
  }
  CHECK(hold(kB) == Hold::sibling);
  CHECK(policy.account(kB).held_by == kA);
  wait(kC);
  decide();
  CHECK(open(kC));
  rest(kC);
  SUBCASE("until that work ends") {
    rest(kA);
    pass(10ms);
    CHECK(open(kB));
  }
  SUBCASE("until that session ends") {
    end(kA);
    CHECK(hold(kB) != Hold::sibling);
    pass(10ms);
    CHECK(open(kB));
  }
  SUBCASE("until no other tenant has been about for 10 s") {
    pass(9s);
    CHECK_FALSE(open(kB));
    pass(2s);
    CHECK(open(kB));
  }
}

TEST_CASE_FIXTURE(Siblings, "With no other tenant about, work that does not end keeps no session of its tenant") {
  begin_work(kA);
  hang(kA);
  wait(kB);
  pass(1s);
  CHECK(open(kB));
}

TEST_CASE_FIXTURE(
    Siblings, "Where a tenant is realtime, work that does not end keeps its siblings while nobody else is there, too") {
  tenant(kBlue, {.service_class = ServiceClass::realtime});
  begin_work(kA);
  hang(kA);
  wait(kB);
  pass(30s);
  CHECK_FALSE(open(kB));
  CHECK(hold(kB) == Hold::sibling);
  SUBCASE("until that work ends") {
    rest(kA);
    pass(10ms);
    CHECK(open(kB));
  }
  SUBCASE("until no tenant is realtime any more") {
    tenant(kBlue, {.service_class = ServiceClass::interactive});
    pass(1s);
    CHECK(open(kB));
  }
}

TEST_CASE_FIXTURE(Siblings, "The first of a tenant's two sessions with endless work may go on beside others") {
  begin_work(kA);
  hang(kA);
  wait(kB);
  pass(1s);
  REQUIRE(open(kB));
  hang(kB);
  pass(1s);
  for (int i = 0; i < 20; ++i) blue_comes();
  pages[kA].waiting = pages[kB].waiting = true;  // more of both stands at their gates
  pass(1s);
  CHECK(open(kA));
  CHECK_FALSE(open(kB));
  CHECK(hold(kB) == Hold::sibling);
}

TEST_CASE("A session that comes back from a rest waits no longer than a slice of the hardware") {
  Pair desk;
  desk.begin_work(kA);
  desk.wait(kB);
  desk.pass(30ms);
  desk.rest(kA);
  desk.pass(1ms);
  REQUIRE(desk.open(kB));
  desk.rest(kB);
  desk.pass(5ms);
  desk.begin_work(kA);
  desk.hang(kA);
  desk.pass(10ms);
  REQUIRE(desk.open(kA));
  desk.wait(kB);
  desk.pass(3ms);
  CHECK(desk.open(kB));
  CHECK(desk.pages[kA].in_flight);
}

TEST_CASE("Unrequested work behind a gate that has reported its drain keeps nobody waiting") {
  Pair desk;
  desk.tenant(kGreen);
  desk.session(kC, kGreen);
  desk.begin_work(kA);
  desk.saturate({kB});
  desk.wait(kC);
  desk.pass(1ms);
  desk.rest(kA);
  desk.pass(400us);
  REQUIRE_FALSE(desk.open(kA));
  REQUIRE(desk.open(kB));
  desk.hang(kA);  // pages that the host wants; the turn goes on for twice as long, since both are charged
  desk.pass(41ms);
  CHECK_FALSE(desk.open(kB));
  CHECK(desk.open(kC));
}

TEST_CASE(
    "A higher class that is in flight without any progress lets the lower one run beside it, and goes before nobody "
    "until it has drained") {
  Pair desk({.service_class = ServiceClass::batch}, {.service_class = ServiceClass::interactive}, {.batch_floor = 0});
  desk.begin_work(kB);
  desk.hang(kB);
  desk.wait(kA);
  desk.pass(190ms);
  CHECK_FALSE(desk.open(kA));
  desk.pass(20ms);
  CHECK(desk.open(kA));
  desk.work(kA);
  desk.pages[kB].waiting = true;
  desk.pass(1ms);
  CHECK(desk.open(kA));
  desk.rest(kB);
  desk.decide();
  desk.wait(kB);
  desk.decide();
  CHECK(desk.open(kB));
  CHECK_FALSE(desk.open(kA));
}

TEST_CASE(
    "Who does not come to its turn is passed over, for longer each time, and pays for the time that it was waited "
    "for") {
  Pair desk;
  desk.saturate({kB});
  desk.wait(kA);
  int red = 0, blue = 0;
  for (int i = 0; i < 1000; ++i) {
    red += desk.open(kA);
    blue += desk.open(kB);
    desk.now += 1ms;
    desk.decide();
    if (desk.open(kB) && desk.pages[kB].waiting) desk.work(kB);
    else if (!desk.open(kB)) desk.wait(kB);
  }
  CHECK(red > 0);
  CHECK(red < 100);
  CHECK(blue > 850);
  CHECK(desk.policy.gpu_time(kRed, 0) > 0ms);
}

TEST_CASE("Batch gets its floor beside an interactive tenant that never leaves the GPU") {
  for (const double floor : {0.05, 0.2}) {
    Pair desk({.service_class = ServiceClass::batch}, {.service_class = ServiceClass::interactive},
              {.batch_floor = floor});
    desk.saturate({kA, kB});
    desk.pass(4s);
    CHECK(desk.share_of_red() > 0.9 * floor);
    CHECK(desk.share_of_red() < 1.2 * floor);
  }
  Pair strict({.service_class = ServiceClass::batch}, {.service_class = ServiceClass::interactive}, {.batch_floor = 0});
  strict.saturate({kA, kB});
  strict.pass(4s);
  CHECK(strict.share_of_red() < 0.001);
}

TEST_CASE("Batch that has rested goes before no interactive request") {
  Pair desk({.service_class = ServiceClass::batch}, {.service_class = ServiceClass::interactive});
  desk.pass(5s);
  desk.begin_work(kA);
  desk.pass(5ms);
  desk.wait(kB);
  desk.decide();
  CHECK(desk.open(kB));
}

TEST_CASE("Turns are granted by weight, whoever uses them") {
  Pair desk({.weight = 3}, {.weight = 1});
  desk.saturate({kA, kB});
  desk.pass(2s);
  const auto granted = [&](TenantId tenant) {
    return std::chrono::duration<double>(desk.policy.granted(tenant, 0)).count();
  };
  CHECK(granted(kRed) / granted(kBlue) == doctest::Approx(3).epsilon(0.1));
}

TEST_CASE("A session that waits at its gate is told which session is on the GPU, and why") {
  Pair desk({.service_class = ServiceClass::batch}, {.service_class = ServiceClass::interactive});
  desk.tenant(kGreen);
  desk.session(kC, kGreen);
  desk.begin_work(kA);
  desk.wait(kC);
  desk.decide();
  CHECK(desk.policy.account(kA).hold == Hold::none);
  CHECK(desk.policy.account(kC).hold == Hold::turn);
  CHECK(desk.policy.account(kC).held_by == kA);
  desk.pass(25ms);
  CHECK(desk.policy.account(kC).hold == Hold::drain);
  CHECK(desk.policy.account(kC).held_by == kA);
  desk.begin_work(kB);
  desk.decide();
  CHECK(desk.policy.account(kC).hold == Hold::higher);
  CHECK(desk.policy.account(kC).held_by == kB);
}

TEST_CASE("A session with two devices gets both together or none") {
  Desk desk;
  desk.tenant(kRed);
  desk.tenant(kBlue);
  desk.tenant(kGreen);
  desk.session(kA, kRed, {0});
  desk.session(kB, kBlue, {1});
  desk.session(kC, kGreen, {0, 1});
  desk.saturate({kA, kB, kC});
  desk.pass(2s);
  CHECK(std::chrono::duration<double>(desk.policy.gpu_time(kGreen, 0)).count() > 0.8);
  CHECK(std::chrono::duration<double>(desk.policy.gpu_time(kGreen, 1)).count() > 0.8);
  CHECK(std::chrono::duration<double>(desk.policy.gpu_time(kRed, 0)).count() > 0.8);
  CHECK(std::chrono::duration<double>(desk.policy.gpu_time(kBlue, 1)).count() > 0.8);
}

TEST_CASE("A session that ends leaves its lease to the next at once") {
  Pair desk;
  desk.begin_work(kA);
  desk.wait(kB);
  desk.pass(1ms);
  CHECK_FALSE(desk.open(kB));
  desk.end(kA);
  CHECK(desk.open(kB));
}

TEST_CASE("A realtime tenant above its cap counts as batch until it has paid back") {
  Pair desk({.service_class = ServiceClass::realtime, .share_max = 0.5}, {.service_class = ServiceClass::interactive});
  desk.saturate({kA, kB});
  desk.pass(2s);
  CHECK(desk.share_of_red() == doctest::Approx(0.5).epsilon(0.06));
}

TEST_CASE("A scavenger gets its floor while others saturate the device") {
  Pair desk({.service_class = ServiceClass::scavenger, .share_min = 0.05},
            {.service_class = ServiceClass::interactive});
  desk.saturate({kA, kB});
  desk.pass(2s);
  CHECK(desk.share_of_red() > 0.045);
  CHECK(desk.share_of_red() < 0.06);
}

TEST_CASE("A clock that leaps ahead or back charges nobody for it and stops nothing") {
  for (const Duration leap : {Duration(-30s), Duration(3600s)}) {
    Pair desk;
    desk.saturate({kA, kB});
    desk.pass(200ms);
    desk.now += leap;
    desk.pass(2s);
    const Duration red = desk.policy.gpu_time(kRed, 0), blue = desk.policy.gpu_time(kBlue, 0);
    CHECK(red + blue < 3300ms);
    CHECK(red > 800ms);
    CHECK(blue > 800ms);
  }
}

}  // namespace
}  // namespace gpuwire::scheduler::test
