// What tenants get of the model's hardware, by sentences.
#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include <doctest/doctest.h>

#include "test/scheduler/simulation/world.hpp"

namespace gpuwire::scheduler::test {
namespace {

using namespace std::chrono_literals;

Workload stream(Duration kernel) { return {.kernel = kernel}; }
Workload steps(Duration busy, Duration rest) {
  return {.kernel = std::min<Duration>(busy, 50us), .burst = busy, .rest_min = rest, .rest_max = rest};
}

struct Couple {
  explicit Couple(const Workload& a, const Workload& b, TenantPolicy of_a = {}, TenantPolicy of_b = {},
                  uint64_t seed = 1)
      : world(seed, 1) {
    world.tenant(TenantId(1), of_a);
    world.tenant(TenantId(2), of_b);
    first = world.add({.tenant = TenantId(1), .workload = a});
    second = world.add({.tenant = TenantId(2), .workload = b, .arrives = 1s + 5ms});
  }
  // Progress per second of both, from the end of the first half second on.
  std::pair<double, double> rates(Duration length = 2s) {
    const Time begin = std::max<Time>(world.now(), 1s + 500ms);
    world.run(begin);
    const double a = world.progress(first), b = world.progress(second);
    world.run(begin + length);
    CHECK(world.wrong().empty());
    const double seconds = std::chrono::duration<double>(length).count();
    return {(world.progress(first) - a) / seconds, (world.progress(second) - b) / seconds};
  }
  Regime regime() { return world.policy().account(first).regime; }
  // For how long of the time until then they run side by side.
  Duration together_until(Time until) {
    Duration together{};
    Time last = world.now();
    world.after_decision = [&] {
      if (regime() == Regime::co_run) together += world.now() - last;
      last = world.now();
      return std::string();
    };
    world.run(until);
    world.after_decision = {};
    return together;
  }

  World world;
  SessionId first{}, second{};
};

TEST_CASE("Sessions whose pauses are longer than a switch run side by side, and nearly as fast as their pauses allow") {
  Couple couple(steps(155us, 315us), steps(155us, 315us));
  const auto [a, b] = couple.rates();
  CHECK(couple.regime() == Regime::co_run);
  const double alone = 155.0 / 470.0;
  CHECK(a + b > 1.45 * alone);
}

TEST_CASE("Sessions whose bursts look shorter to their workers than they are still come to run side by side") {
  Workload split = steps(155us, 315us);
  split.bursts_seen = 4;
  Couple couple(split, split);
  couple.world.run(2s);
  const auto [a, b] = couple.rates();
  CHECK(couple.regime() == Regime::co_run);
  CHECK(a + b > 1.45 * 155.0 / 470.0);
}

TEST_CASE("Running side by side against the forecast ends soon when it does not pay, and is tried seldom") {
  Couple couple(steps(60us, 60us), steps(60us, 60us));
  couple.world.run(1s + 100ms);
  const Duration together = couple.together_until(11s);
  CHECK(together > 0ns);
  CHECK(together < 400ms);
}

TEST_CASE("Shares of 9:1 hold over three seconds, too, whatever the light one got while side by side was tried") {
  const std::pair<Duration, Duration> kernels[] = {{20us, 1ms}, {1ms, 20us}, {100us, 1ms}};
  for (const auto& [of_heavy, of_light] : kernels) {
    for (const Duration length : {Duration(3s), Duration(10s)}) {
      CAPTURE(of_heavy.count());
      CAPTURE(length.count());
      Couple couple(stream(of_heavy), stream(of_light), {.weight = 9}, {.weight = 1});
      couple.world.run(1s + 5ms);
      const Duration heavy_before = couple.world.executed(couple.first);
      couple.world.run(1s + 5ms + length);
      REQUIRE(couple.world.wrong() == "");
      REQUIRE(couple.world.policy().co_run(0).trials >= 3);
      const auto heavy = double((couple.world.executed(couple.first) - heavy_before).count());
      const auto light = double(couple.world.executed(couple.second).count());
      CHECK(std::abs(heavy / (heavy + light) - 0.9) < 0.01);
    }
  }
}

TEST_CASE("A trial that gives a light tenant far more than its share ends as soon as it has been counted") {
  Couple couple(stream(20us), stream(1ms), {.weight = 9}, {.weight = 1});
  const Duration together = couple.together_until(4s);
  REQUIRE(couple.world.policy().co_run(0).trials == 3);
  CHECK(together < 3 * 50ms);
}

TEST_CASE(
    "What one had queued before the other came, and nobody counted, makes turns look no worse than they are: programs "
    "that never pause keep taking them, and their shares") {
  struct Row {
    double weight;
    Duration of_first, of_second;
  };
  constexpr Duration kQueued = 20ms;
  for (const auto& [weight, of_first, of_second] :
       {Row{9, 20us, 1ms}, Row{9, 1ms, 20us}, Row{4, 1ms, 20us}, Row{1, 100us, 100us}}) {
    for (Duration between = -19ms; between <= 19ms; between += 1100us) {
      CAPTURE(weight);
      CAPTURE(of_first.count());
      CAPTURE(between.count());
      World world(1, 1);
      world.tenant(TenantId(1), {.weight = weight});
      world.tenant(TenantId(2), {});
      const auto arrives = [](Duration late) { return 1s + std::max<Duration>(late, 0ms); };
      const SessionId first = world.add(
          {.tenant = TenantId(1), .workload = {.kernel = of_first, .ahead = kQueued}, .arrives = arrives(-between)});
      const SessionId second = world.add(
          {.tenant = TenantId(2), .workload = {.kernel = of_second, .ahead = kQueued}, .arrives = arrives(between)});
      const Time begin = 1s + std::chrono::abs(between) + 500ms;
      world.run(begin);
      const double a = world.progress(first), b = world.progress(second);
      world.run(begin + 3s);
      REQUIRE(world.wrong() == "");
      const double of_first_done = (world.progress(first) - a) / 3, of_second_done = (world.progress(second) - b) / 3;
      const double total = of_first_done + of_second_done;
      CHECK(std::abs(of_first_done / total - weight / (weight + 1)) < 0.01);
      CHECK(total > 0.98);
    }
  }
}

TEST_CASE("Tight synchronizing loops take turns, for side by side they would lose nearly everything to switches") {
  Couple couple(steps(5us, 10us), steps(5us, 10us));
  const auto [a, b] = couple.rates(500ms);
  CHECK(couple.regime() == Regime::lease);
  CHECK(a == doctest::Approx(b).epsilon(0.05));
}

TEST_CASE("A heavy weight gets its share side by side, too") {
  Couple couple(steps(155us, 315us), steps(155us, 315us), {.weight = 20});
  const auto [a, b] = couple.rates();
  const double alone = 155.0 / 489.0;  // with what it takes to begin, and to hear of the end
  CHECK(couple.regime() == Regime::co_run);
  CHECK(a > 0.9 * 20 / 21 * alone);
  CHECK(a + b > 1.2 * alone);
}

TEST_CASE(
    "A tenant that never pauses ends what two do side by side, until all have been measured, and gets its third") {
  Couple couple(steps(155us, 315us), steps(155us, 315us));
  couple.rates(200ms);
  REQUIRE(couple.regime() == Regime::co_run);
  couple.world.tenant(TenantId(3), {});
  couple.world.add({.tenant = TenantId(3), .workload = stream(1ms)});
  // Turns at once, and a trial when they have been measured.
  couple.world.run(couple.world.now() + 20ms);
  CHECK(couple.regime() == Regime::lease);
  const Time begin = couple.world.now() + 130ms;
  couple.world.run(begin);
  std::array<double, 3> before{}, alone{155.0 / 489.0, 155.0 / 489.0, 1};
  for (uint64_t i = 0; i < 3; ++i) before[i] = couple.world.progress(SessionId(i + 1));
  couple.world.run(begin + 2s);
  double total = 0;
  for (uint64_t i = 0; i < 3; ++i) {
    const double got = (couple.world.progress(SessionId(i + 1)) - before[i]) / 2 / alone[i];
    CHECK(got > 0.9 / 3);
    total += got;
  }
  CHECK(total > 0.98);
}

TEST_CASE(
    "Batch tenants go on side by side between the requests of an interactive one, which are as fast as beside nobody") {
  Couple couple(steps(155us, 315us), steps(155us, 315us));
  couple.world.tenant(TenantId(3), {.service_class = ServiceClass::interactive});
  const SessionId requests = couple.world.add(
      {.tenant = TenantId(3), .workload = {.kernel = 97us, .burst = 4850us, .rest_min = 5ms, .rest_max = 15ms}});
  couple.world.run(2s);
  const auto [a, b] = couple.rates();
  const double alone = 155.0 / 470.0;
  CHECK(a + b > 0.95 * alone);
  auto took = couple.world.sessions()[static_cast<uint64_t>(requests) - 1].request_seconds;
  std::sort(took.begin(), took.end());
  CHECK(took[took.size() / 2] < 1.08 * 0.00485);
}

TEST_CASE(
    "A tenant that pauses for a moment after each burst is waited for, and gets its half beside one that never "
    "pauses") {
  Couple couple(steps(155us, 400us), stream(100us));
  const auto [a, b] = couple.rates();
  CHECK(a > 0.45 * 155.0 / 555.0);
  CHECK(b > 0.45);
}

TEST_CASE(
    "A loop that waits for each kernel keeps no batch tenant from what it leaves of the GPU, and batch is not left "
    "with nothing") {
  // Pauses that are longer than the gate lingers are batch's; of shorter ones it gets a part.
  for (const auto& [rest, least, kept] : {std::tuple<Duration, double, double>{1500us, 0.3, 0.75},
                                          {200us, 0.06, 0.9},
                                          {20us, 0.045, 0.9},
                                          {5us, 0.045, 0.9}}) {
    Couple couple(steps(50us, rest), stream(100us), {.service_class = ServiceClass::interactive});
    const auto [loop, batch] = couple.rates();
    const double alone =
        50.0 / static_cast<double>(69 + rest / 1us);  // with what it takes to begin, and to hear of the end
    CAPTURE(rest.count());
    CHECK(batch > least);
    CHECK(loop > kept * alone);
  }
}

namespace {

double at(std::vector<double> seconds, double part) {
  std::sort(seconds.begin(), seconds.end());
  REQUIRE(!seconds.empty());
  return seconds[static_cast<size_t>(part * static_cast<double>(seconds.size() - 1))];
}

// An interactive tenant beside a batch one, and alone.
struct Beside {
  Beside(const Workload& interactive, const Workload& batch, uint64_t seed = 1)
      : alone(interactive, {.kernel = 100us, .burst = 1us, .rest_min = 1h, .rest_max = 1h}, kInteractive, {}, seed),
        together(interactive, batch, kInteractive, {}, seed) {
    const double solo = alone.rates().first;
    const auto [first, second] = together.rates();
    kept = first / solo;
    given = second;
  }
  // How much longer its requests take, of the slowest hundredth.
  double added() const {
    return at(together.world.sessions()[0].request_seconds, 0.99) - at(alone.world.sessions()[0].request_seconds, 0.99);
  }

  static constexpr TenantPolicy kInteractive{.service_class = ServiceClass::interactive};
  Couple alone, together;
  double kept = 0, given = 0;  // of what it does alone; of the device's time, to batch
};

}  // namespace

TEST_CASE(
    "Of a GPU that a loop holds and leaves idle in pauses that are too short to be given away, batch has a part") {
  for (const auto& [busy, rest] : {std::pair<Duration, Duration>{50us, 200us}, {40us, 150us}, {20us, 80us}}) {
    const Beside beside(steps(busy, rest), stream(100us));
    CAPTURE(rest.count());
    CHECK(beside.given >= 0.07);
    CHECK(beside.kept >= 0.88);
  }
}

TEST_CASE("Batch gets a loop's pauses except for the switches, and the loop's requests start in time") {
  for (const auto& [busy, rest, least] : {std::tuple<Duration, Duration, double>{60us, 400us, 0.3},
                                          {60us, 500us, 0.38},
                                          {100us, 700us, 0.5},
                                          {100us, 1ms, 0.58}}) {
    const Beside beside(steps(busy, rest), stream(100us));
    CAPTURE(rest.count());
    CHECK(beside.given >= least);
    CHECK(beside.added() < 0.4e-3);
  }
}

TEST_CASE(
    "Of a loop of 60 us with pauses of 0.4 ms batch has 34.5 % of the GPU, and the loop keeps two thirds of its rate") {
  for (const uint64_t seed : {1u, 2u, 3u, 4u}) {
    CAPTURE(seed);
    const Beside beside(steps(60us, 400us), stream(100us), seed);
    CHECK(beside.given >= 0.345);
    CHECK(beside.kept >= 0.66);
    CHECK(beside.added() < 0.3e-3);
  }
}

TEST_CASE("A request of 0.1 ms beside kernels that are longer than a slice of the hardware takes 0.5 ms at most") {
  for (const Duration kernel : {10ms, 50ms}) {
    for (const uint64_t seed : {1u, 2u, 3u, 4u}) {
      CAPTURE(kernel.count());
      CAPTURE(seed);
      Couple couple({.kernel = 97us, .burst = 97us, .rest_min = 2ms, .rest_max = 8ms}, stream(kernel),
                    {.service_class = ServiceClass::interactive}, {}, seed);
      couple.world.run(1s + 1s);
      const size_t begun = couple.world.sessions()[0].request_seconds.size();
      couple.world.run(1s + 6s);
      REQUIRE(couple.world.wrong() == "");
      const auto& all = couple.world.sessions()[0].request_seconds;
      const std::vector<double> took(all.begin() + static_cast<ptrdiff_t>(begun), all.end());
      REQUIRE(took.size() > 500);
      CHECK(at(took, 0.99) < 0.5e-3);
    }
  }
}

TEST_CASE("A request that waits for the device on its way keeps it, however long the pauses between requests are") {
  const Workload request{
      .kernel = 100us, .burst = 500us, .gap = 100us, .bursts_per_request = 10, .rest_min = 2ms, .rest_max = 8ms};
  const Beside beside(request, stream(100us));
  CHECK(beside.together.world.sessions()[0].request_seconds.size() > 150);
  CHECK(beside.added() < 0.6e-3);
}

TEST_CASE("Neighbours of a session whose work does not drain wait for a moment once, and then run beside it") {
  // A kernel of hours stands for all of these: a host function that waits, pages that travel, an executor in a driver
  // call.
  for (const ServiceClass of : {ServiceClass::batch, ServiceClass::interactive}) {
    Couple couple(stream(1h), {.kernel = 100us, .burst = 200us, .rest_min = 3ms, .rest_max = 9ms},
                  {.service_class = of});
    couple.world.run(4s);
    const auto& neighbour = couple.world.sessions()[1];
    CAPTURE(static_cast<int>(of));
    CHECK(neighbour.longest_wait < 250ms);
    auto took = neighbour.request_seconds;
    std::sort(took.begin(), took.end());
    CHECK(took.size() > 300);
    CHECK(took[took.size() * 99 / 100] < 0.012);
  }
}

TEST_CASE("A neighbour of programs that come one after the other keeps its share, as beside one that stays") {
  for (const Duration life : {60ms, 100ms, 150ms}) {
    for (const Duration pause : {20us, 200us}) {
      CAPTURE(life.count());
      CAPTURE(pause.count());
      World world(1, 1);
      world.tenant(TenantId(1), {});
      world.tenant(TenantId(2), {});
      const SessionId stays = world.add({.tenant = TenantId(1), .workload = steps(20us, pause)});
      for (Time at = 2s; at < 5s; at += life)
        world.add({.tenant = TenantId(2), .workload = stream(100us), .arrives = at, .ends = at + life});
      world.run(1s + 200ms);
      const double begun = world.progress(stays);
      world.run(2s);
      const double alone = (world.progress(stays) - begun) / 0.8, before = world.progress(stays);
      world.run(5s);
      CHECK(world.wrong().empty());
      CHECK((world.progress(stays) - before) / 3 > 0.45 * alone);
    }
  }
}

TEST_CASE("Neighbours of a session that does not come to its turns, or works behind its closed gate, lose little") {
  Workload absent = stream(100us);
  absent.late_probability = 1;
  absent.late = 40ms;
  Couple late(absent, stream(100us));
  CHECK(late.rates().second > 0.85);
  // Managed memory: between two bursts its pages travel.
  Workload travels = steps(2ms, 300us);
  travels.unasked = 30ms;
  Couple pages(travels, {.kernel = 100us, .burst = 200us, .rest_min = 3ms, .rest_max = 9ms});
  pages.world.run(4s);
  auto took = pages.world.sessions()[1].request_seconds;
  std::sort(took.begin(), took.end());
  CHECK(took.size() > 250);
  CHECK(took[took.size() * 9 / 10] < 0.015);
}

TEST_CASE("Long kernels that take turns with short requests keep them from nothing but a slice") {
  Couple couple(stream(150ms), {.kernel = 100us, .burst = 200us, .rest_min = 3ms, .rest_max = 9ms});
  couple.world.run(5s);
  auto took = couple.world.sessions()[1].request_seconds;
  std::sort(took.begin(), took.end());
  CHECK(took.size() > 300);
  CHECK(took[took.size() * 9 / 10] < 0.012);
}

TEST_CASE(
    "Programs that launch a kernel at a time look like one long burst, and come to run side by side within 100 ms all "
    "the same") {
  Workload launches = steps(155us, 315us);
  launches.kernel = 5us;
  launches.bursts_seen = 30;
  Couple couple(launches, launches);
  Time chosen{};
  couple.world.after_decision = [&] {
    if (couple.regime() == Regime::co_run && chosen == Time{}) chosen = couple.world.now();
    return std::string();
  };
  couple.world.run(1s + 300ms);
  CHECK(couple.regime() == Regime::co_run);
  CHECK(chosen < 1s + 105ms);
  const auto [a, b] = couple.rates();
  CHECK(a + b > 1.45 * 155.0 / 470.0);
}

TEST_CASE("Sessions that run side by side do so again when one of them has been alone for a while") {
  Workload pausing = steps(155us, 315us);
  pausing.gap = 315us;
  pausing.bursts_per_request = 400;
  pausing.rest_min = pausing.rest_max = 200ms;
  Couple couple(steps(155us, 315us), pausing);
  couple.world.run(1s + 500ms);
  Duration turns{};
  Time last = couple.world.now();
  couple.world.after_decision = [&] {
    if (couple.regime() == Regime::lease) turns += couple.world.now() - last;
    last = couple.world.now();
    return std::string();
  };
  couple.world.run(last + 3s);
  CHECK(turns < 300ms);
}

TEST_CASE(
    "Side by side is left within 100 ms when the programs come to need all of the GPU, and not tried all the time") {
  Couple couple(steps(155us, 315us), steps(155us, 315us));
  couple.rates(200ms);
  REQUIRE(couple.regime() == Regime::co_run);
  for (World::SessionState& session : couple.world.sessions()) session.spec.workload = steps(5us, 10us);
  const Time changed = couple.world.now();
  Time left{};
  unsigned changes = 0;
  Regime last = Regime::co_run;
  couple.world.after_decision = [&] {
    if (couple.regime() != last) ++changes;
    if (couple.regime() == Regime::lease && left == Time{}) left = couple.world.now();
    last = couple.regime();
    return std::string();
  };
  couple.world.run(changed + 3s);
  CHECK(left - changed < 100ms);
  CHECK(changes < 10);
}

TEST_CASE("A tenant that works and rests gets its share beside one that never rests") {
  Couple couple(steps(5ms, 5ms), stream(100us));
  const auto [a, b] = couple.rates();
  CHECK(a > 0.5 * 0.5);
  CHECK(b > 0.45);
}

TEST_CASE("A tenant's many contexts and sessions take nothing from another") {
  Couple many(stream(100us), {.kernel = 100us, .contexts = 64});
  CHECK(many.rates().first == doctest::Approx(0.5).epsilon(0.03));
  Couple crowd(stream(100us), stream(100us));
  for (int i = 0; i < 15; ++i) crowd.world.add({.tenant = TenantId(2), .workload = stream(100us)});
  CHECK(crowd.rates().first == doctest::Approx(0.5).epsilon(0.03));
}

TEST_CASE("A kernel that never ends costs its equals half the device at most, and no lease goes to it again") {
  Couple couple(stream(1h), stream(100us));
  const auto [endless, other] = couple.rates();
  CHECK(other > 0.44);
  CHECK(couple.world.sessions()[0].openings == 1);
}

namespace {

// Requests of 5 ms of a realtime tenant beside one of another, whose sessions all behave alike at first.
struct RequestsBeside {
  explicit RequestsBeside(unsigned sessions, const Workload& load, Time comes = 1s) : world(1, 1) {
    world.tenant(TenantId(1), {.service_class = ServiceClass::realtime});
    world.tenant(TenantId(2), {.service_class = ServiceClass::scavenger});
    world.add({.tenant = TenantId(1),
               .workload = {.kernel = 100us, .burst = 5ms, .rest_min = 20ms, .rest_max = 60ms},
               .arrives = comes});
    for (unsigned i = 0; i < sessions; ++i) world.add({.tenant = TenantId(2), .workload = load, .arrives = 1s + 10ms});
  }
  // How long the slowest tenth of the requests from now on take at least.
  double took_until(Time until) {
    const size_t before = world.sessions()[0].request_seconds.size();
    world.run(until);
    REQUIRE(world.wrong() == "");
    const auto& all = world.sessions()[0].request_seconds;
    return at({all.begin() + static_cast<ptrdiff_t>(before), all.end()}, 0.9);
  }
  World world;
};
constexpr double kTwiceAsLong = 2.1 * 0.005;

}  // namespace

TEST_CASE("Endless kernels in any number of a tenant's sessions make a realtime request take twice as long, not more") {
  for (const unsigned sessions : {1u, 4u, 8u, 16u}) {
    CAPTURE(sessions);
    RequestsBeside beside(sessions, stream(1h));
    beside.world.run(3s);
    CHECK(beside.took_until(9s) < kTwiceAsLong);
  }
}

TEST_CASE(
    "Endless kernels in any number of a session's contexts make a realtime request take twice as long, not more") {
  for (const unsigned contexts : {4u, 16u, 64u}) {
    CAPTURE(contexts);
    RequestsBeside beside(1, {.kernel = 1h, .contexts = contexts});
    beside.world.run(3s);
    CHECK(beside.took_until(9s) < kTwiceAsLong);
  }
}

TEST_CASE("A realtime tenant that comes for the first time finds one endless kernel of a tenant, however many wait") {
  for (const unsigned sessions : {4u, 16u}) {
    CAPTURE(sessions);
    RequestsBeside beside(sessions, stream(1h), 6s);
    beside.world.run(8s);
    CHECK(beside.took_until(14s) < kTwiceAsLong);
  }
}

TEST_CASE("Sessions that have all rested and then begin endless kernels together come one after the other, too") {
  RequestsBeside beside(16, steps(200us, 7ms));
  beside.world.run(3s);
  CHECK(beside.took_until(4s) < 1.1 * 0.005);
  for (World::SessionState& session : beside.world.sessions()) {
    if (session.spec.tenant == TenantId(2)) session.spec.workload = stream(1h);
  }
  beside.world.run(6s);
  CHECK(beside.took_until(12s) < kTwiceAsLong);
}

namespace {

// What a hostile tenant may do to have more than its part; bench/sharing has the same on a GPU (`--rows hostile`).
struct Attack {
  const char* name;
  Workload load;
  unsigned sessions = 1;
  bool heartbeats = false;  // beside a kernel that does not end, something else of the session ends ten times a second
};
const Attack kAttacks[] = {{"16 sessions", stream(100us), 16},
                           {"64 contexts", {.kernel = 100us, .contexts = 64}},
                           {"16 sessions of 4 contexts", {.kernel = 100us, .contexts = 4}, 16},
                           {"kernels of 50 ms in 16 sessions", stream(50ms), 16},
                           {"a sync after each kernel in 16 sessions", steps(100us, 20us), 16},
                           {"kernels that never end, and heartbeats, in 16 sessions", stream(1h), 16, true}};

void add_attack(World& world, const Attack& attack) {
  for (unsigned i = 0; i < attack.sessions; ++i)
    world.add({.tenant = TenantId(2), .workload = attack.load, .arrives = 1s + 5ms + 1ms * i});
  if (!attack.heartbeats) return;
  world.lies = [&world](SessionId session, Observation& seen) {
    if (world.sessions()[size_t(session) - 1].spec.tenant != TenantId(2) || !seen.in_flight) return;
    const auto beats = uint64_t(world.now() / 100ms);
    seen.submissions += beats;
    seen.completions += beats;
    seen.stuck_since = seen.first_start;
  };
}

}  // namespace

TEST_CASE("A hostile tenant leaves its equal 48 of 100 parts of the work of both") {
  for (const Attack& attack : kAttacks) {
    CAPTURE(attack.name);
    World world(1, 1);
    for (const int tenant : {1, 2}) world.tenant(TenantId(tenant), {});
    const SessionId victim = world.add({.tenant = TenantId(1), .workload = stream(100us)});
    add_attack(world, attack);
    world.run(3s);
    std::vector<double> before;
    for (const World::SessionState& session : world.sessions()) before.push_back(world.progress(session.id));
    world.run(8s);
    REQUIRE(world.wrong() == "");
    double all = 0;
    for (const World::SessionState& session : world.sessions())
      all += world.progress(session.id) - before[size_t(session.id) - 1];
    CHECK((world.progress(victim) - before[size_t(victim) - 1]) / all >= 0.48);
  }
}

TEST_CASE("A hostile scavenger makes a realtime request take twice as long, not more") {
  for (const Attack& attack : kAttacks) {
    CAPTURE(attack.name);
    RequestsBeside beside(0, {});
    add_attack(beside.world, attack);
    beside.world.run(3s);
    CHECK(beside.took_until(9s) < kTwiceAsLong);
  }
}

TEST_CASE("Where weights are far apart a turn stays within its bound, and the shares are kept") {
  Couple couple(stream(100us), stream(100us), {.weight = 30});
  const auto [a, b] = couple.rates(10s);
  CHECK(a / (a + b) == doctest::Approx(30.0 / 31).epsilon(0.005));
  CHECK(couple.world.sessions()[1].longest_wait < 260ms);
}

TEST_CASE(
    "What may be in flight stays bounded for a while after an equal was there, and is unbounded again after that") {
  Couple couple(stream(100us), {.kernel = 100us, .burst = 100us, .rest_min = 1h, .rest_max = 1h});
  couple.world.run(1s + 500ms);
  CHECK(couple.world.sessions()[0].gate.in_flight_max == 500us);
  couple.world.run(1s + 3s);
  CHECK(couple.world.sessions()[0].gate.in_flight_max == 0ns);
}

}  // namespace
}  // namespace gpuwire::scheduler::test
