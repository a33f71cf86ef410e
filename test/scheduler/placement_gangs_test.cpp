// Sessions that want several GPUs at once: how long they wait, and how long GPUs are idle for them.
#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "test/scheduler/placement_fixture.hpp"

namespace gpuwire::scheduler {
namespace {

// GPUs for one session each. Somebody else's session runs on the first, a gang waits for all, and small ones that come
// all the time use what is there. Time goes in steps.
class GangBehindLongSession {
 public:
  static constexpr unsigned kGpus = 4, kLongSteps = 300, kSmallStepsMax = 20;
  static constexpr SessionId kLong{1}, kGang{2};

  explicit GangBehindLongSession(uint64_t seed)
      : random_(seed), placement_(std::vector<Placement::Device>(kGpus, {16 * kGiB, 1})) {
    PlacementRequest first = asks(uint64_t(kLong));
    first.allowed = {0};
    REQUIRE(devices_of(placement_.ask(first)) == std::vector<DeviceIndex>{0});
    begun(kLong, {{0}});
    ends_[kLong] = kLongSteps;
    REQUIRE(place_of(placement_.ask(asks(uint64_t(kGang), 0, kGpus))) == 1);
  }

  void run() {
    for (now_ = 0; !runs_.contains(kGang) && now_ < 2 * kLongSteps; ++now_) {
      for (auto one = ends_.begin(); one != ends_.end();) {
        if (one->second > now_) {
          ++one;
          continue;
        }
        placement_.leave(one->first);
        runs_.erase(one->first);
        one = ends_.erase(one);
      }
      for (auto& [session, placed] : placement_.start_waiting()) begun(session, placed);
      for (unsigned come = 0; come < kGpus; ++come) {
        const SessionId session{++last_};
        auto answer = placement_.ask(asks(last_));
        if (auto* placed = std::get_if<Placed>(&answer)) begun(session, *placed);
      }
      REQUIRE(placement_.check() == "");
      if (runs_.contains(kLong)) idle_while_long_ += kGpus - unsigned(runs_.size());
      while (placement_.waiting().size() > 12) placement_.cancel(placement_.waiting().back().first);
    }
  }

  unsigned idle_while_long() const { return idle_while_long_; }
  bool gang_runs() const { return runs_.contains(kGang); }
  unsigned now() const { return now_; }

 private:
  void begun(SessionId session, const Placed& placed) {
    runs_[session] = placed.devices;
    ends_[session] = now_ + std::uniform_int_distribution<unsigned>(1, kSmallStepsMax)(random_);
  }

  std::mt19937_64 random_;
  Placement placement_;
  std::map<SessionId, std::vector<DeviceIndex>> runs_;
  std::map<SessionId, unsigned> ends_;
  uint64_t last_ = 100;
  unsigned now_ = 0, idle_while_long_ = 0;
};

}  // namespace

TEST_CASE("while a session that was there before it runs, a gang leaves no GPU idle, and then it is the next") {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    GangBehindLongSession scenario(seed);
    scenario.run();
    CHECK(scenario.idle_while_long() == 0);
    REQUIRE(scenario.gang_runs());
    // Those that run when the long one ends are waited for, and nobody begins any more.
    CHECK(scenario.now() <= scenario.kLongSteps + scenario.kSmallStepsMax + 1);
  }
}

TEST_CASE("a gang that only newer sessions are in the way of has its GPUs kept after it was overtaken a few times") {
  Placement placement(std::vector<Placement::Device>(2, {16 * kGiB, 1}));
  REQUIRE(devices_of(placement.ask(asks(1))) == std::vector<DeviceIndex>{0});
  REQUIRE(place_of(placement.ask(asks(2, 0, 2))) == 1);
  for (uint64_t small = 10; small < 10 + 4 * kOvertakenMax; ++small) {
    REQUIRE(devices_of(placement.ask(asks(small))) == std::vector<DeviceIndex>{1});
    placement.leave(SessionId(small));
  }
  REQUIRE(devices_of(placement.ask(asks(3))) == std::vector<DeviceIndex>{1});
  placement.leave(SessionId(1));
  CHECK(placement.start_waiting().empty());
  CHECK(place_of(placement.ask(asks(4))) == 2);
  placement.leave(SessionId(3));
  auto started = placement.start_waiting();
  REQUIRE(started.size() == 1);
  CHECK(started[0].first == SessionId(2));
}

namespace {

// GPUs for one session each, a gang that waits for all of them, and others that come all the time, each for one GPU.
// Nobody knows how long a session runs. Time goes in minutes.
class GangBesideLongSessions {
 public:
  static constexpr unsigned kGpus = 4, kMinutesMax = 10'000;
  static constexpr uint64_t kGang = 1;

  // A session's minutes, from the minute in which it begins.
  using Length = std::function<unsigned(unsigned now)>;
  GangBesideLongSessions(Length length, unsigned gangs)
      : length_(std::move(length)), placement_(std::vector<Placement::Device>(kGpus, {16 * kGiB, 1})) {
    for (; last_ < 100 + kGpus; ++last_) come();
    for (uint64_t gang = kGang; gang < kGang + gangs; ++gang) REQUIRE(place_of(placement_.ask(asks(gang, 0, kGpus))));
  }

  void run() {
    for (now_ = 1; !gang_began_ && now_ < kMinutesMax; ++now_) {
      std::erase_if(ends_, [&](const auto& one) {
        if (one.second <= now_) placement_.leave(one.first);
        return one.second <= now_;
      });
      placement_.pass_time(std::chrono::minutes(now_));
      for (auto& [session, placed] : placement_.start_waiting()) begun(session);
      for (unsigned i = 0; i < kGpus; ++i, ++last_) come();
      REQUIRE(placement_.check() == "");
      if (gang_began_) break;
      const unsigned idle = kGpus - unsigned(ends_.size());
      idle_ += idle;
      idle_at_once_ = idle != 0 ? idle_at_once_ + 1 : 0;
      idle_at_once_most_ = std::max(idle_at_once_most_, idle_at_once_);
      for (auto waiting = placement_.waiting(); waiting.size() > 12; waiting.pop_back())
        placement_.cancel(waiting.back().first);
    }
  }

  bool gang_began() const { return gang_began_; }
  unsigned minutes() const { return now_; }
  unsigned idle() const { return idle_; }                            // GPU minutes
  unsigned idle_at_once_most() const { return idle_at_once_most_; }  // minutes in a row in which some GPU was idle

 private:
  void come() {
    auto answer = placement_.ask(asks(last_));
    if (std::holds_alternative<Placed>(answer)) begun(SessionId(last_));
  }
  void begun(SessionId session) {
    if (uint64_t(session) < 100) gang_began_ = true;
    else ends_[session] = now_ + std::max(1u, length_(now_));
  }

  const Length length_;
  Placement placement_;
  std::map<SessionId, unsigned> ends_;
  uint64_t last_ = 100;
  unsigned now_ = 0, idle_ = 0, idle_at_once_ = 0, idle_at_once_most_ = 0;
  bool gang_began_ = false;
};

constexpr auto kKeptFirst = unsigned(kKeptForGangFirst / std::chrono::minutes(1));

}  // namespace

TEST_CASE("a long session that began after a gang came keeps the GPUs that wait with it idle for a bounded time") {
  // One of those that overtake the gang runs for a day, all others for some minutes.
  constexpr unsigned kLong = 24 * 60;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    bool long_one = false;
    GangBesideLongSessions scenario(
        [&](unsigned now) {
          if (now > 0 && !std::exchange(long_one, true)) return kLong;
          return std::uniform_int_distribution<unsigned>(1, 9)(random);
        },
        1);
    scenario.run();
    REQUIRE(scenario.gang_began());
    CHECK(scenario.idle_at_once_most() <= kKeptFirst + 1);
    // Kept once, and again when the long one has ended.
    CHECK(scenario.idle() <= 2 * (kKeptFirst + 1) * scenario.kGpus);
    CHECK(scenario.minutes() <= kLong + 100);
  }
}

TEST_CASE(
    "a gang begins in bounded time whatever sessions run when it waits, and keeps GPUs idle for half of it at most") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    // In the first scenarios all of them run for as long, and end at different times: one is always in the middle.
    const unsigned longest = std::uniform_int_distribution<unsigned>(kKeptFirst, 20 * kKeptFirst)(random);
    const unsigned gangs = std::uniform_int_distribution<unsigned>(1, 4)(random);
    bool first = true;
    GangBesideLongSessions scenario(
        [&](unsigned now) {
          if (now == 0) return std::uniform_int_distribution<unsigned>(1, longest)(random);
          if (seed <= 10) return longest;
          return std::uniform_int_distribution<unsigned>(std::exchange(first, false) ? longest : 1, longest)(random);
        },
        gangs);
    scenario.run();
    REQUIRE(scenario.gang_began());
    // Each time it is kept for twice as long; what it is kept for in vain is shorter than the longest session, and
    // lent for as long as that one goes on or it was kept.
    unsigned rounds = 0;
    for (unsigned kept = kKeptFirst; kept < longest; kept *= 2) ++rounds;
    CHECK(scenario.minutes() <= longest * (rounds + 4) + 2 * kOvertakenMax);
    CHECK(scenario.idle_at_once_most() <= std::max(longest, kKeptFirst) + 1);
    // The last time comes to its end with the gang's beginning, and not with lending.
    CHECK(scenario.idle() <= scenario.kGpus * (scenario.minutes() / 2 + longest + rounds + 1));
  }
}

TEST_CASE("time in which nobody else could use a gang's GPUs is not time for which they were kept") {
  Placement placement(std::vector<Placement::Device>(2, {16 * kGiB, 1}));
  Time now = std::chrono::hours(1);
  const auto pass = [&](Duration time) { placement.pass_time(now += time); };
  pass({});
  REQUIRE(devices_of(placement.ask(asks(1))) == std::vector<DeviceIndex>{0});
  REQUIRE(place_of(placement.ask(asks(2, 0, 2))) == 1);
  for (uint64_t small = 10; small < 10 + kOvertakenMax; ++small) {
    REQUIRE(devices_of(placement.ask(asks(small))) == std::vector<DeviceIndex>{1});
    placement.leave(SessionId(small));
  }
  REQUIRE(devices_of(placement.ask(asks(3))) == std::vector<DeviceIndex>{1});
  placement.leave(SessionId(1));
  pass(100 * kKeptForGangFirst);
  REQUIRE(place_of(placement.ask(asks(4))) == 2);  // kept, with the third in the gang's way
  pass(kKeptForGangFirst - std::chrono::seconds(1));
  CHECK(placement.start_waiting().empty());
  pass(std::chrono::seconds(1));
  auto started = placement.start_waiting();
  REQUIRE(started.size() == 1);
  CHECK(started[0].first == SessionId(4));
  // It is the next as soon as none of them is there.
  placement.leave(SessionId(3));
  placement.leave(SessionId(4));
  started = placement.start_waiting();
  REQUIRE(started.size() == 1);
  CHECK(started[0].first == SessionId(2));
}

}  // namespace gpuwire::scheduler
