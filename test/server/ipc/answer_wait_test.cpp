#include "server/ipc/answer_wait.hpp"

#include <optional>
#include <thread>

#include <doctest/doctest.h>

using namespace gpuwire::server::ipc;

namespace {

constexpr std::chrono::milliseconds kAtOnce{0};
constexpr std::chrono::minutes kLong{5};

struct Asker {
  std::mutex mutex;
  gpuwire::Condition changed;
  AnswerWait wait;
  bool answered = false, reachable = true;
  unsigned asked = 0;

  bool ask(std::chrono::milliseconds at_most) {
    std::unique_lock lock(mutex);
    auto say = [&] {
      ++asked;
      changed.notify_all();
      return reachable;
    };
    return wait.wait(lock, changed, at_most, say, [&] { return answered; });
  }
  template <class Change>
  void change(Change&& what) {
    {
      std::lock_guard lock(mutex);
      what();
    }
    changed.notify_all();
  }
  void await_asked(unsigned times) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return asked >= times; });
  }
};

}  // namespace

TEST_CASE("an answer that does not come in time is none, and a broker that cannot be asked is not waited for") {
  Asker asker;
  CHECK_FALSE(asker.ask(kAtOnce));
  asker.reachable = false;
  CHECK_FALSE(asker.ask(kLong));
  CHECK(asker.asked == 2);
}

TEST_CASE("a question is asked again of the broker that comes in another's place, and waits meanwhile") {
  Asker asker;
  bool yes = false;
  asker.wait.away();
  // There is no broker, so no time limit runs.
  std::thread thread([&] { yes = asker.ask(kAtOnce); });
  asker.await_asked(1);
  asker.change([&] { asker.answered = true, asker.wait.back(); });
  thread.join();
  CHECK(yes);
}

TEST_CASE("a question that the broker before has heard is asked again of the next one") {
  Asker asker;
  bool yes = false;
  std::thread thread([&] { yes = asker.ask(kLong); });
  asker.await_asked(1);
  asker.change([&] { asker.wait.away(); });
  asker.change([&] { asker.wait.back(); });
  asker.await_asked(2);
  asker.change([&] { asker.answered = true; });
  thread.join();
  CHECK(yes);
}

TEST_CASE("a broker that has gone for good lets nobody wait") {
  Asker asker;
  bool yes = true;
  asker.wait.away();
  std::thread thread([&] { yes = asker.ask(kLong); });
  asker.await_asked(1);
  asker.change([&] { asker.reachable = false, asker.wait.back(); });
  thread.join();
  CHECK_FALSE(yes);
}
