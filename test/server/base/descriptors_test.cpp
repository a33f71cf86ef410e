#include "server/base/descriptors.hpp"

#include <cerrno>

#include <doctest/doctest.h>
#include <sys/resource.h>

#include "test/server/base/no_descriptors.hpp"

using namespace gpuwire::server;
using gpuwire::test::NoDescriptors;

TEST_CASE("a process may raise its limit as far as the hard one") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = 64;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  CHECK(descriptor_limit() == 64);
  CHECK(raise_descriptor_limit() == before.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("a spare descriptor makes room for another one, and comes back when there is room") {
  SpareDescriptors spares(2);
  {
    NoDescriptors none;
    CHECK(::open("/dev/null", O_RDONLY) == -1);
    CHECK(out_of_descriptors(errno));
    REQUIRE(spares.give_up_one());
    int opened = ::open("/dev/null", O_RDONLY);
    CHECK(opened >= 0);
    spares.refill();
    REQUIRE(spares.give_up_one());
    CHECK_FALSE(spares.give_up_one());
    ::close(opened);
  }
  spares.refill();
  CHECK(spares.give_up_one());
  CHECK(spares.give_up_one());
  CHECK_FALSE(spares.give_up_one());
}
