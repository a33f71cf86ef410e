#include "server/worker/session/quiescence.hpp"

#include <string>
#include <thread>

#include <doctest/doctest.h>

using gpuwire::server::Quiescence;

namespace {

struct Rest {
  std::string told;  // the broker
  int woken = 0, gone_on = 0;
  std::string why_not;
  Quiescence quiescence{{.wake = [this] { ++woken; },
                         .quiet = [this](const std::string& why) { told += why.empty() ? "quiet " : why + " "; },
                         .return_wanted = [this] { told += "wanted "; }}};
  void follow() {
    if (quiescence.attention())
      quiescence.follow(
          {[this] { return why_not; }, [this] { ++gone_on; }, [this](bool back) { told += back ? "back " : "out "; }});
  }
};

}  // namespace

TEST_CASE("the executor rests between two frames when the broker asks, and goes on when it says so") {
  Rest rest;
  rest.follow();
  CHECK(rest.told.empty());
  rest.quiescence.request();
  CHECK(rest.woken == 1);
  CHECK_FALSE(rest.quiescence.quiet());
  rest.follow();
  CHECK(rest.quiescence.quiet());
  CHECK(rest.told == "quiet ");
  rest.quiescence.go_on();
  rest.follow();
  CHECK_FALSE(rest.quiescence.quiet());
  CHECK(rest.gone_on == 1);
  CHECK(rest.woken == 2);
}

TEST_CASE("an executor that cannot rest says why, and a request may be withdrawn") {
  Rest rest;
  rest.why_not = "busy";
  rest.quiescence.request();
  rest.follow();
  CHECK_FALSE(rest.quiescence.quiet());
  rest.quiescence.request();
  rest.quiescence.go_on();
  rest.follow();
  CHECK(rest.told == "busy ");
  CHECK(rest.gone_on == 0);
}

TEST_CASE("a frame that needs the driver waits for the broker, who hears of it once") {
  Rest rest;
  rest.quiescence.request();
  rest.follow();
  std::thread broker([&] { rest.quiescence.go_on(); });
  rest.quiescence.await_return();
  broker.join();
  rest.follow();
  CHECK_FALSE(rest.quiescence.quiet());
  CHECK((rest.told == "quiet wanted " || rest.told == "quiet "));
}

TEST_CASE("the end of the session ends the wait, and leaves the driver alone") {
  Rest rest;
  rest.quiescence.request();
  rest.follow();
  rest.quiescence.interrupt();
  rest.quiescence.await_return();
  CHECK(rest.quiescence.quiet());
  CHECK(rest.gone_on == 0);
}

TEST_CASE("a new broker hears again that the executor rests, and that it has a frame") {
  Rest rest;
  rest.quiescence.repeat();
  CHECK(rest.told.empty());
  rest.quiescence.request();
  rest.follow();
  rest.quiescence.repeat();
  CHECK(rest.told == "quiet quiet ");
  rest.quiescence.interrupt();
  rest.quiescence.await_return();
  rest.quiescence.repeat();
  CHECK(rest.told == "quiet quiet wanted quiet wanted ");
  rest.quiescence.go_on();
  rest.quiescence.repeat();  // it goes on already
  CHECK(rest.told == "quiet quiet wanted quiet wanted ");
}

TEST_CASE("a resting executor moves its blocks when the broker says so, also while a frame waits") {
  Rest rest;
  rest.quiescence.request();
  rest.follow();
  rest.quiescence.move_blocks(false);
  rest.follow();
  CHECK(rest.quiescence.quiet());
  rest.quiescence.move_blocks(true);
  rest.quiescence.await_return();  // returns for the order
  rest.follow();
  CHECK(rest.quiescence.quiet());
  rest.quiescence.go_on();
  rest.quiescence.await_return();
  rest.follow();
  CHECK_FALSE(rest.quiescence.quiet());
  CHECK(rest.told == "quiet out wanted back ");
}

TEST_CASE("an order to go on withdraws the order to move the blocks that came before it") {
  Rest rest;
  rest.quiescence.request();
  rest.follow();
  rest.quiescence.move_blocks(false);
  rest.quiescence.go_on();
  rest.follow();
  CHECK(rest.gone_on == 1);
  CHECK(rest.told == "quiet ");
}
