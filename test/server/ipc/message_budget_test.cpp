#include "server/ipc/message_budget.hpp"

#include <doctest/doctest.h>

using namespace gpuwire::server::ipc;
using Verdict = MessageBudget::Verdict;
using std::chrono::milliseconds;

namespace {

// A worker's messages to the broker: turns of a bounded number, with the due pauses.
struct Listening {
  MessageBudget::Time now{};
  MessageBudget budget{now};
  size_t pauses = 0;
  Verdict turn(size_t heard) {
    Verdict verdict = budget.turn(heard, now);
    if (verdict == Verdict::pause) {
      now += milliseconds(kBudgetPauseMs);
      ++pauses;
    }
    return verdict;
  }
};

}  // namespace

TEST_CASE("a worker that waits for its answers is slowed down however much it asks, and never ended") {
  Listening listening;
  size_t questions = 100'000;
  for (size_t i = 0; i < questions; ++i) REQUIRE(listening.turn(1) != Verdict::flood);
  CHECK(listening.pauses > 0);
  // The burst, and the refill in the elapsed time.
  double seconds = std::chrono::duration<double>(listening.now - MessageBudget::Time{}).count();
  CHECK(double(questions) <= kBudgetAtOnce + (seconds + 1) * kBudgetPerSecond);
}

TEST_CASE("a worker that has a whole turn's messages behind every pause floods") {
  Listening listening;
  Verdict verdict = Verdict::go_on;
  size_t turns = 0;
  for (; verdict != Verdict::flood && turns < 100'000; ++turns) verdict = listening.turn(kMessagesPerTurn);
  CHECK(verdict == Verdict::flood);
  CHECK(listening.pauses >= kFullTurnsMax);
  CHECK(listening.pauses <= kFullTurnsMax + 1);
}

TEST_CASE("a worker that says little is never held up") {
  Listening listening;
  for (int i = 0; i < 10'000; ++i) {
    listening.now += milliseconds(1);
    REQUIRE(listening.turn(1) == Verdict::go_on);
  }
}
