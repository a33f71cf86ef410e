#include "server/broker/worker/worker_wait.hpp"

#include <doctest/doctest.h>

namespace gpuwire::server {
namespace {

using namespace std::chrono_literals;
constexpr WorkerWait::Time kBegin{};
constexpr std::chrono::milliseconds kEach{kWorkerWaitMs}, kMost{kWorkerWaitMostMs}, kTell{kWorkerNotifyMs};

}  // namespace

TEST_CASE("A session waits longer for a worker while others become ready, one after the other") {
  WorkerWait wait(kBegin);
  CHECK(wait.ends() == kBegin + kEach);
  wait.worker_ready(kBegin + 3s);
  CHECK(wait.ends() == kBegin + 3s + kEach);
  wait.worker_ready(kBegin + 3s + kEach - 1ms);
  CHECK(wait.ends() == kBegin + 3s + 2 * kEach - 1ms);
}

TEST_CASE("A session does not wait for a worker for ever") {
  WorkerWait wait(kBegin);
  for (auto now = kBegin; now < kBegin + 2 * kMost; now += kEach / 2) wait.worker_ready(now);
  CHECK(wait.ends() == kBegin + kMost);
}

TEST_CASE("A client is told once that its session waits for a worker") {
  WorkerWait wait(kBegin);
  CHECK(wait.next() == kBegin + kTell);
  CHECK_FALSE(wait.must_notify(kBegin + kTell - 1ms));
  CHECK(wait.must_notify(kBegin + kTell));
  CHECK_FALSE(wait.must_notify(kBegin + kTell));
  CHECK(wait.next() == kBegin + kEach);
}

TEST_CASE("A client that has waited longer is not refused later") {
  WorkerWait first(kBegin), second(kBegin + 10s);
  for (auto now = kBegin + 10s; now < kBegin + 2 * kMost; now += 7s) {
    first.worker_ready(now);
    second.worker_ready(now);
    CHECK(first.ends() <= second.ends());
  }
}

}  // namespace gpuwire::server
