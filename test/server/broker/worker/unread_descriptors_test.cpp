#include <doctest/doctest.h>

#include "server/broker/worker/unread_descriptors.hpp"

using namespace gpuwire::server;

namespace {

// Workers that read on the test's signal.
struct Workers {
  explicit Workers(UnreadDescriptors::Limits limits) : unread(limits) {}
  UnreadDescriptors unread;
  bool reads[8] = {};
  void add(size_t worker, const char* tenant) {
    unread.watch(&reads[worker], tenant, [this, worker] { return reads[worker]; });
  }
  size_t sent(size_t worker, size_t count) {
    size_t taken = 0;
    for (size_t i = 0; i < count; ++i) taken += unread.add(&reads[worker]);
    return taken;
  }
};

}  // namespace

TEST_CASE("a worker that reads nothing is sent so many descriptors, and one that reads any number") {
  Workers workers({.per_worker = 4, .per_tenant = 100});
  workers.add(0, "anna");
  workers.add(1, "anna");
  workers.reads[1] = true;
  CHECK(workers.sent(0, 10) == 4);
  CHECK_FALSE(workers.unread.room(&workers.reads[0]));
  CHECK(workers.sent(1, 1000) == 1000);
  workers.reads[0] = true;
  CHECK(workers.unread.room(&workers.reads[0]));
  CHECK(workers.unread.unread(&workers.reads[0]) == 0);
}

TEST_CASE("a tenant's bound holds for those of its workers that do not read, and for nobody else's") {
  Workers workers({.per_worker = 4, .per_tenant = 10});
  for (size_t worker : {0u, 1u, 2u, 3u, 4u}) workers.add(worker, "anna");
  workers.add(5, "ben");
  workers.reads[4] = true;
  CHECK(workers.sent(0, 10) + workers.sent(1, 10) + workers.sent(2, 10) + workers.sent(3, 10) == 4 + 4 + 2 + 1);
  CHECK(workers.sent(4, 100) == 100);
  CHECK(workers.sent(5, 10) == 4);
  // Descriptors that a worker has read, or that ended with it, make room for others.
  workers.unread.forget(&workers.reads[0]);
  CHECK(workers.sent(2, 10) == 2);
  workers.reads[1] = true;
  CHECK(workers.sent(3, 10) == 3);
}

TEST_CASE("a worker that nobody watches is sent none") {
  UnreadDescriptors unread;
  int worker = 0;
  CHECK_FALSE(unread.add(&worker));
}
