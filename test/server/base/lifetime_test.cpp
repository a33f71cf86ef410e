#include "server/base/lifetime.hpp"

#include <functional>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

using namespace gpuwire::server;

namespace {

// Counts calls of callbacks whose caller does not know whether the object still exists.
struct Counter {
  explicit Counter(std::vector<std::function<void(int)>>& queue) {
    queue.push_back(lifetime.guard([this](int by) { count += by; }));
  }
  int count = 0;
  Lifetime lifetime;
};

}  // namespace

TEST_CASE("a callback is called while its object is there, and does nothing afterwards") {
  std::vector<std::function<void(int)>> queue;
  auto counter = std::make_unique<Counter>(queue);
  queue[0](2);
  queue[0](3);
  CHECK(counter->count == 5);
  counter.reset();
  queue[0](7);  // otherwise the address sanitizer fails
}

TEST_CASE("a caller can see that its callee has destroyed it") {
  std::vector<std::function<void(int)>> queue;
  auto counter = std::make_unique<Counter>(queue);
  Lifetime::Watch life = counter->lifetime.watch();
  CHECK_FALSE(life.gone());
  counter.reset();
  CHECK(life.gone());
}
