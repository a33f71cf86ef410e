#include "server/ipc/blocking_requests.hpp"

#include <thread>

#include <doctest/doctest.h>

using namespace gpuwire::server;
using namespace gpuwire::server::ipc;

namespace {

constexpr std::chrono::minutes kLong{5};

struct Fixture {
  std::optional<Channel> broker, own;
  std::optional<BlockingRequests> requests;
  Fixture() {
    OwnedDescriptor brokers, workers;
    REQUIRE(open_pair(brokers, workers));
    broker.emplace(std::move(brokers), Speaker::worker, 64);
    own.emplace(std::move(workers), Speaker::broker, 64);
    requests.emplace(*own);
  }
  tl::expected<Answer, std::string> ask(uint64_t bytes, std::chrono::milliseconds at_most = kLong) {
    return requests->ask(at_most, [&](RequestId request) { return MemoryWanted{request, 0, bytes}; });
  }
  MemoryWanted asked() {
    auto message = broker->await();
    REQUIRE(message);
    return std::get<MemoryWanted>(*message);
  }
};

}  // namespace

TEST_CASE("each thread gets the answer to its own question, in whatever order they come") {
  Fixture fixture;
  tl::expected<Answer, std::string> yes, no;
  std::thread first([&] { yes = fixture.ask(1); }), second([&] { no = fixture.ask(2); });
  MemoryWanted one = fixture.asked(), other = fixture.asked();
  CHECK(one.request != other.request);
  for (const MemoryWanted& wanted : {other, one}) fixture.requests->on_message({wanted.request, wanted.bytes == 1, {}});
  first.join();
  second.join();
  REQUIRE(yes);
  CHECK(yes->yes);
  REQUIRE(no);
  CHECK_FALSE(no->yes);
}

TEST_CASE("a question without an answer ends with the reason, and an answer that comes later is nobody's") {
  Fixture fixture;
  auto none = fixture.ask(1, std::chrono::milliseconds(1));
  REQUIRE_FALSE(none);
  CHECK(none.error() == "the broker has not answered in time");
  fixture.requests->on_message({fixture.asked().request, true, {}});
  CHECK_FALSE(fixture.ask(2, std::chrono::milliseconds(1)));
  fixture.broker.reset();
  auto gone = fixture.ask(3);
  REQUIRE_FALSE(gone);
  CHECK(gone.error() == "the broker cannot be asked");
}

TEST_CASE("while there is no broker a question waits, and is asked again of the next one") {
  Fixture fixture;
  tl::expected<Answer, std::string> answer;
  std::thread asks([&] { answer = fixture.ask(1); });
  MemoryWanted first = fixture.asked();
  fixture.requests->broker_away();
  fixture.requests->broker_back();
  MemoryWanted again = fixture.asked();
  CHECK(again.request == first.request);
  fixture.requests->on_message({again.request, true, {}});
  asks.join();
  REQUIRE(answer);
  CHECK(answer->yes);
}
