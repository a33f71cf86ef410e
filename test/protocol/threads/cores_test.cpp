#include "protocol/threads/cores.hpp"

#include <doctest/doctest.h>
#include <sched.h>

using gpuwire::usable_cores;

TEST_CASE("A thread that is kept on one processor has one") {
  cpu_set_t before, one;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(usable_cores() == unsigned(CPU_COUNT(&before)));
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &before)) {
      CPU_SET(core, &one);
      break;
    }
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(usable_cores() == 1);
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
}
