#include "server/software_device/driver/stream/operation.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <random>
#include <vector>

namespace {

using gpuwire::software_device::OperationScheduler;
using gpuwire::software_device::OperationPtr;

// The scheduler is never destroyed: its threads outlive the test, like the driver's.
OperationScheduler& scheduler() {
  static auto* const instance = new OperationScheduler;
  return *instance;
}

}  // namespace

TEST_CASE("An operation starts when all it depends on has finished") {
  std::promise<void> gate;
  const auto opened = gate.get_future().share();
  std::atomic<int> order{0};
  int first_at = 0, last_at = 0;
  const OperationPtr first = scheduler().submit(
      [&] {
        opened.wait();
        first_at = ++order;
      },
      {});
  const OperationPtr free = scheduler().submit([] {}, {});
  const OperationPtr both[] = {first, free};
  const OperationPtr last = scheduler().submit([&] { last_at = ++order; }, both);
  scheduler().wait(*free);
  CHECK_FALSE(last->done());
  CHECK_FALSE(scheduler().wait_for(*last, std::chrono::milliseconds(0)));
  gate.set_value();
  scheduler().wait(*last);
  CHECK(first_at == 1);
  CHECK(last_at == 2);
}

TEST_CASE("A marker finishes with its last dependency, and at once without any") {
  CHECK(scheduler().submit(nullptr, {})->done());
  std::promise<void> gate;
  const auto opened = gate.get_future().share();
  const OperationPtr work = scheduler().submit([&] { opened.wait(); }, {});
  const OperationPtr marker = scheduler().submit(nullptr, {&work, 1});
  CHECK_FALSE(marker->done());
  gate.set_value();
  scheduler().wait(*marker);
  CHECK(work->done());
  CHECK(marker->finished_at() >= work->finished_at());
}

TEST_CASE("The calling thread's own work takes its place in line") {
  std::promise<void> gate;
  const auto opened = gate.get_future().share();
  std::vector<int> order;
  const OperationPtr before = scheduler().submit(
      [&] {
        opened.wait();
        order.push_back(1);
      },
      {});
  const OperationPtr here = scheduler().prepare({&before, 1});
  const OperationPtr after = scheduler().submit([&] { order.push_back(3); }, {&here, 1});
  gate.set_value();
  scheduler().run_here(here, [&] { order.push_back(2); });
  scheduler().wait(*after);
  CHECK(order == std::vector<int>{1, 2, 3});
}

TEST_CASE("A random graph is carried out in an order that respects every edge") {
  constexpr uint32_t kSeed = 4711;
  INFO("seed ", kSeed);
  std::mt19937 random(kSeed);
  constexpr size_t kCount = 2000;
  std::vector<OperationPtr> operations;
  std::vector<std::vector<size_t>> edges(kCount);
  std::vector<std::atomic<bool>> done(kCount);
  std::atomic<int> violations{0};
  for (size_t i = 0; i < kCount; ++i) {
    std::vector<OperationPtr> dependencies;
    for (uint32_t n = i == 0 ? 0 : random() % 4; n > 0; --n) {
      edges[i].push_back(random() % i);
      dependencies.push_back(operations[edges[i].back()]);
    }
    operations.push_back(scheduler().submit(
        [&, i] {
          for (const size_t from : edges[i]) {
            violations += done[from].load() ? 0 : 1;
          }
          done[i].store(true);
        },
        dependencies));
  }
  for (const auto& operation : operations) {
    scheduler().wait(*operation);
  }
  CHECK(violations == 0);
}
