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

TEST_CASE("A session that waits beside one that works is granted after that one's turn, and the work in flight is bounded") {
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
  CHECK_FALSE(desk.open(kB));      // it has not drained
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
  const auto of = [&](SessionId id) { return std::chrono::duration<double>(desk.policy.account(id).gpu_time) / std::chrono::duration<double>(desk.charged()); };
  CHECK(of(kB) == doctest::Approx(1.0 / 6).epsilon(0.05));
  CHECK(of(kD) == doctest::Approx(1.0 / 6).epsilon(0.05));
}

TEST_CASE("A kernel that never ends is charged, does not hold up a higher class, and its equals only for a bounded time") {
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
  Pair desk({.service_class = ServiceClass::scavenger, .share_min = 0.05}, {.service_class = ServiceClass::interactive});
  desk.saturate({kA, kB});
  desk.pass(2s);
  CHECK(desk.share_of_red() == doctest::Approx(0.05).epsilon(0.2));
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
