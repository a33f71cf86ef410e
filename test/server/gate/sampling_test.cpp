#include "server/gate/sampling.hpp"

#include <doctest/doctest.h>

using namespace gpuwire::server;
using namespace std::chrono_literals;
using std::chrono::nanoseconds;

namespace {

// Returns the credited part if work takes `work` in every `period`, and sampling pauses between bursts, like the
// in-flight tracker, or goes on.
double credited_part(nanoseconds work, nanoseconds period, bool rests) {
  Sampling sampling;
  constexpr int kRounds = 20'000;
  nanoseconds credit{};
  PageTime next = PageTime(sampling.begin());
  for (int round = 0; round < kRounds; ++round) {
    PageTime begins = round * PageTime(period), ends = begins + work;
    if (rests) next = begins + sampling.begin();
    for (; next < begins + period; next += sampling.pause()) {
      auto stands_for = sampling.stands_for(next);
      if (next >= begins && next < ends) credit += stands_for;
      if (rests && next >= ends) break;
    }
  }
  return double(credit.count()) / (double(work.count()) * kRounds);
}

}  // namespace

TEST_CASE("samples credit on average what was worked: little, much, in step with them or not") {
  for (nanoseconds work : {100us, 1000us, 5000us, 30'000us}) {
    CAPTURE(work.count());
    for (nanoseconds rest : {5ms, 10ms, 100ms}) {
      CAPTURE(rest.count());
      CHECK(credited_part(work, work + rest, false) == doctest::Approx(1).epsilon(0.1));
    }
    CHECK(credited_part(work, work + 100ms, true) == doctest::Approx(1).epsilon(0.1));
  }
}

TEST_CASE("work without an end is credited whole") {
  Sampling sampling;
  PageTime begun = PageTime(sampling.begin()), now = begun;
  nanoseconds credit{};
  for (int poll = 0; poll < 1000; ++poll, now += sampling.pause()) credit += sampling.stands_for(now);
  CHECK(double(credit.count()) == doctest::Approx(double((now - begun).count())).epsilon(0.01));
}
