// What a program that waits may expect, out of how long others have run.
#include <doctest/doctest.h>

#include "scheduler/run_times.hpp"

namespace gpuwire::scheduler {
namespace {

RunTimes of(std::initializer_list<double> seconds) {
  RunTimes times;
  for (double one : seconds) times.add(one);
  return times;
}

}  // namespace

TEST_CASE("nothing is expected while few run times are known, nobody runs, or nobody waits") {
  CHECK_FALSE(of({10, 20}).start_after_s({1}, 1));
  CHECK_FALSE(of({10, 20, 30}).start_after_s({}, 1));
  CHECK_FALSE(of({10, 20, 30}).start_after_s({1}, 0));
  CHECK(of({10, 20, 30}).start_after_s({1}, 1));
}

TEST_CASE("a program is expected to run as much longer as those did that ran longer than its age") {
  const RunTimes times = of({10, 20, 60});
  CHECK(*times.start_after_s({0}, 1) == doctest::Approx(30));
  CHECK(*times.start_after_s({15}, 1) == doctest::Approx(25));  // 5 and 45
  CHECK(*times.start_after_s({50}, 1) == doctest::Approx(10));
  CHECK(*times.start_after_s({100}, 1) == doctest::Approx(100));  // older than all: as long once more
}

TEST_CASE("the first in the queue waits for the first end, and those behind for later ones") {
  const RunTimes times = of({10, 20, 60});
  const std::vector<double> ages{0, 50};  // 30 and 10 left
  CHECK(*times.start_after_s(ages, 1) == doctest::Approx(10));
  CHECK(*times.start_after_s(ages, 2) == doctest::Approx(30));
  CHECK(*times.start_after_s(ages, 3) == doctest::Approx(10 + 30));  // after one more program of average length
  CHECK(*times.start_after_s(ages, 4) == doctest::Approx(30 + 30));
}

TEST_CASE("only the latest run times count, and clocks that were set back count as no time") {
  RunTimes times;
  for (size_t i = 0; i < kRunTimesKept; ++i) times.add(1000);
  for (size_t i = 0; i < kRunTimesKept; ++i) times.add(10);
  CHECK(*times.start_after_s({0}, 1) == doctest::Approx(10));
  CHECK(*times.start_after_s({-5}, 1) == doctest::Approx(10));
  times.add(-1);
  CHECK(*times.start_after_s({9}, 1) == doctest::Approx(1));
}

}  // namespace gpuwire::scheduler
