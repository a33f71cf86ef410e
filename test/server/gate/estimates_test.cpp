#include "fixture.hpp"
#include "server/gate/estimates.hpp"
#include "server/gate/limits.hpp"

using namespace gpuwire::server;
using namespace std::chrono_literals;

TEST_CASE("a kernel that was never seen has no estimate, and a seen one's follows its times") {
  Estimates estimates;
  CHECK(!estimates.find(1));
  estimates.learn(1, 100us);
  CHECK(estimates.find(1) == 100us);
  CHECK(!estimates.find(2));
  for (int i = 0; i < 40; ++i) estimates.learn(1, 300us);
  CHECK(*estimates.find(1) > 299us);
  CHECK(*estimates.find(1) <= 300us);
}

TEST_CASE("a first observation that was far too long is forgotten within a few") {
  Estimates estimates;
  estimates.learn(1, 2ms);
  for (int i = 0; i < 4; ++i) estimates.learn(1, 100us);
  CHECK(*estimates.find(1) < 250us);
}

TEST_CASE("a client with ever new kernels does not make the estimates grow without end") {
  Estimates estimates;
  for (uint64_t key = 0; key < 3 * kEstimatesMax; ++key) estimates.learn(key, 1us);
  size_t known = 0;
  for (uint64_t key = 0; key < 3 * kEstimatesMax; ++key) known += estimates.find(key).has_value();
  CHECK(known <= kEstimatesMax);
}

TEST_CASE("keys of other parts are other keys") {
  CHECK(key_of({1, 2}) != key_of({2, 1}));
  CHECK(key_of({1, 2}) == key_of({1, 2}));
  CHECK(key_of({0}) != key_of({0, 0}));
}
