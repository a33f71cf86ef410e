// Spares that follow demand, in a model of a pool: sessions come, workers take a while to start.
#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "server/broker/worker/prewarmed_demand.hpp"
#include "server/broker/worker/worker_starts.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using namespace std::chrono_literals;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kStart{300};
constexpr WorkerStarts::Pool kPool = 1;

// One pool, in steps of a millisecond: a model of WorkerPool and WorkerPools without processes.
class Model {
 public:
  explicit Model(PrewarmedDemand::Limits limits) : demand_(limits) {
    demand_.started(kStart);
    ready_ = limits.least;
  }

  // A session that is served for `length` once it has a worker; `over` is called at its end.
  void come(
      const std::string& tenant, milliseconds length, std::function<void()> over = [] {}) {
    const scheduler::SessionId number{++sessions};
    demand_.came(now_);
    starts_.wait(kPool, number, tenant);
    waiting_[number] = {tenant, length, std::move(over), now_};
    match();
    if (waiting_.contains(number)) ++waited, ++waited_of[tenant];
  }
  void run_for(milliseconds time) {
    for (const auto until = now_ + time; now_ < until; now_ += 1ms) step();
  }
  void run_until(const std::function<bool()>& done) {
    for (unsigned steps = 0; !done(); ++steps, now_ += 1ms) {
      REQUIRE(steps < 1'000'000);
      step();
    }
  }
  unsigned wanted() const { return demand_.wanted(now_); }
  size_t workers() const { return ready_ + starting_.size() + served_.size(); }

  unsigned sessions = 0, waited = 0, started = 0, ended = 0, most_prewarmed = 0;
  std::map<std::string, unsigned> waited_of;
  std::map<std::string, milliseconds> longest_wait;

 private:
  struct Session {
    std::string tenant;
    milliseconds length;
    std::function<void()> over;
    PrewarmedDemand::Time came;
  };
  struct Served {
    PrewarmedDemand::Time until;
    std::function<void()> over;
  };

  void match() {
    while (ready_ > 0) {
      auto number = starts_.take(kPool);
      if (!number) break;
      --ready_;
      auto one = waiting_.extract(*number);
      Session& session = one.mapped();
      auto& longest = longest_wait[session.tenant];
      longest = std::max(longest, std::chrono::duration_cast<milliseconds>(now_ - session.came));
      served_.push_back({now_ + session.length, std::move(session.over)});
    }
    const size_t wanted = demand_.wanted(now_);
    ended += ready_ - std::min(ready_, wanted);
    ready_ = std::min(ready_, wanted);
    starts_.wish(kPool, true, wanted - ready_);
    while (starts_.next(now_)) {
      // A start without a waiting session is a prewarmed worker's: all waiting sessions have a starting worker.
      if (starting_.size() >= waiting_.size()) CHECK(starting_.size() < kParallelStartsMax - kStartsForSessions);
      starts_.begun(kPool, ++last_, now_);
      starting_.push_back({last_, now_ + kStart});
      ++started;
    }
    most_prewarmed =
        std::max(most_prewarmed, unsigned(ready_ + starting_.size() - std::min(starting_.size(), waiting_.size())));
  }
  void step() {
    for (auto one = starting_.begin(); one != starting_.end() && one->second <= now_;) {
      starts_.settled(one->first);
      demand_.started(kStart);
      one = starting_.erase(one);
      ++ready_;
    }
    std::vector<std::function<void()>> over;
    std::erase_if(served_, [&](Served& one) {
      if (one.until > now_) return false;
      over.push_back(std::move(one.over));
      return true;
    });
    for (auto& call : over) call();
    match();
  }

  PrewarmedDemand::Time now_{std::chrono::hours(1)};
  PrewarmedDemand demand_;
  WorkerStarts starts_;
  size_t ready_ = 0;
  pid_t last_ = 0;
  std::vector<std::pair<pid_t, PrewarmedDemand::Time>> starting_;
  std::map<scheduler::SessionId, Session> waiting_;
  std::vector<Served> served_;
};

// Runs `count` programs, each of which begins when the one before it has ended.
void one_after_the_other(Model& model, unsigned count, milliseconds length) {
  unsigned ended = 0;
  std::function<void()> next = [&] {
    if (++ended < count) model.come("anna", length, next);
  };
  model.come("anna", length, next);
  model.run_until([&] { return ended == count; });
}

}  // namespace

TEST_CASE("programs that follow each other wait for a worker a few times, and then never") {
  Model model({.least = 1, .most = 8});
  one_after_the_other(model, 10, 60ms);
  CHECK(model.waited <= 4);
  const unsigned before = model.waited;
  one_after_the_other(model, 200, 60ms);
  CHECK(model.waited == before);
  CHECK(model.most_prewarmed <= 8);
  // With a constant single prewarmed worker every second session waits.
  Model fixed({.least = 1, .most = 1});
  one_after_the_other(fixed, 210, 60ms);
  CHECK(fixed.waited >= 100);
}

TEST_CASE("programs that come less often than workers start find the one prewarmed worker, and cost no other") {
  Model model({.least = 1, .most = 8});
  for (int i = 0; i < 50; ++i) {
    model.come("anna", 100ms);
    model.run_for(kPrewarmedWindowStarts * kStart + 1ms);
    CHECK(model.wanted() == 1);
  }
  CHECK(model.waited == 0);
  CHECK(model.started == model.sessions);
}

TEST_CASE("a burst that comes again finds as many prewarmed workers as the one before has had sessions") {
  Model model({.least = 1, .most = 8});
  for (int burst = 0; burst < 5; ++burst) {
    for (int i = 0; i < 6; ++i) model.come("anna", 500ms);
    model.run_for(4s);
    CHECK(model.waited == 5);  // sessions of the first burst
  }
}

TEST_CASE("in a long pause the prewarmed workers go, down to the least, and are not started again") {
  Model model({.least = 2, .most = 8});
  one_after_the_other(model, 30, 40ms);
  CHECK(model.wanted() == 8);
  model.run_for(2 * kPrewarmedHoldStarts * kStart);
  CHECK(model.wanted() == 2);
  CHECK(model.workers() == 2);
  const unsigned started = model.started;
  model.run_for(std::chrono::minutes(5));
  CHECK(model.started == started);
}

TEST_CASE("one tenant's flood is answered with no more prewarmed workers than may be, and takes nobody's turn") {
  Model model({.least = 1, .most = 8});
  unsigned running = 0, begun = 0;
  std::function<void()> over = [&] { --running; };
  for (int ms = 0; ms < 20'000; ++ms) {
    for (; running < 50 && begun < 2'000; ++running, ++begun) model.come("anna", 5ms, over);
    if (ms % 2'000 == 1'000) model.come("ben", 5ms);
    model.run_for(1ms);
    REQUIRE(model.most_prewarmed <= 8);
    REQUIRE(model.workers() <= 50 + 1 + 8);
  }
  // At most one worker for each session, and those left ready.
  CHECK(model.started <= model.sessions + 8);
  // Ben gets the next ready worker.
  CHECK(model.longest_wait["ben"] <= kStart);
}

TEST_CASE("a pool without prewarmed workers gets none, whoever comes") {
  PrewarmedDemand demand({.least = 0, .most = 8});
  PrewarmedDemand::Time now{std::chrono::hours(1)};
  for (int i = 0; i < 100; ++i) {
    demand.came(now);
    CHECK(demand.wanted(now) == 0);
  }
  CHECK_FALSE(demand.next_change(now));
}

TEST_CASE("a most below the least counts as the least") {
  PrewarmedDemand demand({.least = 3, .most = 1});
  PrewarmedDemand::Time now{std::chrono::hours(1)};
  for (int i = 0; i < 10; ++i) demand.came(now);
  CHECK(demand.wanted(now) == 3);
}

TEST_CASE("a device that takes minutes to start a worker makes nobody hold prewarmed workers for hours") {
  PrewarmedDemand demand({.least = 1, .most = 8});
  demand.started(std::chrono::minutes(10));
  CHECK(demand.start_time() == milliseconds(kStartHoldMs));
  PrewarmedDemand::Time now{std::chrono::hours(1)};
  for (int i = 0; i < 8; ++i) demand.came(now);
  CHECK(demand.wanted(now) == 8);
  CHECK(demand.wanted(now + milliseconds(kPrewarmedHoldMaxMs)) == 1);
}

TEST_CASE("the demand stays within its limits, and falls at the time that it gives") {
  const uint32_t seed = 20261123;
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  for (int scenario = 0; scenario < 200; ++scenario) {
    const PrewarmedDemand::Limits limits{unsigned(random() % 4), unsigned(random() % 12)};
    PrewarmedDemand demand(limits);
    PrewarmedDemand::Time now{std::chrono::hours(1)};
    for (int step = 0; step < 200; ++step) {
      now += milliseconds(random() % 3 ? random() % 50 : random() % 5'000);
      if (random() % 4) demand.came(random() % 10 ? now : now - 1h);  // an earlier time is ignored
      else demand.started(milliseconds(random() % 1'000));
      const unsigned wanted = demand.wanted(now);
      REQUIRE(wanted >= limits.least);
      REQUIRE(wanted <= (limits.least ? std::max(limits.least, limits.most) : 0));
      if (auto change = demand.next_change(now)) {
        REQUIRE(*change > now);
        REQUIRE(demand.wanted(*change - 1ns) == wanted);
        REQUIRE(demand.wanted(*change) < wanted);
      } else {
        REQUIRE(wanted == limits.least);
      }
    }
  }
}
