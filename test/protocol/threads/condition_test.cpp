#include "protocol/threads/condition.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

using namespace gpuwire;

TEST_CASE("every notification of one thread finds a waiting thread, however many wait") {
  constexpr int kThreads = 6, kItems = 20'000;
  std::mutex mutex;
  Condition pushed, taken;
  int items = 0, items_taken = 0;
  bool ending = false;
  std::vector<std::thread> pool;
  for (int number = 0; number < kThreads; ++number)
    pool.emplace_back([&] {
      std::unique_lock lock(mutex);
      for (;;) {
        pushed.wait(lock, [&] { return ending || items > 0; });
        if (items == 0) return;
        --items;
        ++items_taken;
        taken.notify_one();
      }
    });
  for (int number = 1; number <= kItems; ++number) {
    std::unique_lock lock(mutex);
    ++items;
    if (number % 2) lock.unlock();
    pushed.notify_one();
    if (number % 2) lock.lock();
    // In bursts of three, so that threads are woken while others go to sleep. A lost notification ends by the limit.
    if (number % 3 == 0) REQUIRE(taken.wait_for(lock, std::chrono::minutes(5), [&] { return items_taken == number; }));
  }
  {
    std::unique_lock lock(mutex);
    ending = true;
    CHECK(taken.wait_for(lock, std::chrono::minutes(5), [&] { return items_taken == kItems; }));
  }
  pushed.notify_all();
  for (std::thread& thread : pool) thread.join();
}

TEST_CASE("a wait with a deadline ends without a notification and says whether its condition holds") {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  Condition condition;
  const auto now = std::chrono::steady_clock::now();
  CHECK_FALSE(condition.wait_until(lock, now, [] { return false; }));
  CHECK(condition.wait_until(lock, now, [] { return true; }));
  CHECK_FALSE(condition.wait_for(lock, std::chrono::milliseconds(1), [] { return false; }));
  int asked = 0;
  CHECK(condition.wait_for(lock, std::chrono::milliseconds(1), [&] { return ++asked == 2; }));
  CHECK(lock.owns_lock());
}
