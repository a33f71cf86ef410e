#include "protocol/link/heartbeat.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "protocol/transport/simulated.hpp"
#include "test/protocol/transport/pairs.hpp"

using namespace gpuwire;
using link::GivingUp;
using link::Heartbeat;
using link::Link;
using link::Loss;

namespace {

constexpr std::chrono::seconds kInterval{3};

// A link that outlives its connections and looks at its heartbeat; nobody's clock runs.
struct End {
  explicit End(std::unique_ptr<transport::Transport> first, GivingUp how = GivingUp::closes)
      : link(std::move(first)), heartbeat(link, how, kInterval) {
    link.outlive_connections();
    link.observe([this](Link::State state) { losses += state == Link::State::detached; });
  }

  // Takes what is there; how many bytes.
  size_t take() {
    size_t all = 0;
    std::byte bytes[4096];
    while (link.wait(transport::kReadable, transport::Nanoseconds(0))) {
      auto got = link.try_receive(bytes);
      if (got.status != transport::IoStatus::ok) break;
      all += got.bytes;
    }
    return all;
  }

  void post() {
    wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::posted), .sequence = ++frames};
    {
      std::lock_guard lock(link);
      std::byte* at = link.reserve(sizeof header, 0, 0);
      REQUIRE(at);
      std::memcpy(at, &header, sizeof header);
      REQUIRE(link.publish(sizeof header));
    }
    link.pump();
  }

  Link link;
  Heartbeat heartbeat;
  uint64_t frames = 0;
  unsigned losses = 0;
};

Heartbeat::Clock::time_point at(int64_t ms) {
  return Heartbeat::Clock::time_point(std::chrono::hours(1) + std::chrono::milliseconds(ms));
}

}  // namespace

TEST_CASE(
    "two idle ends keep their connection for as long as they like, on every transport, with one heartbeat of each in "
    "an interval") {
  for (const auto& kind : test::pair_kinds()) {
    INFO(kind.name);
    auto ends = kind.make(test::test_seed());
    End one(std::move(ends.first)), other(std::move(ends.second));
    for (int poll = 0; poll < 40; ++poll) {
      for (End* end : {&one, &other}) {
        end->heartbeat.poll(at(poll * 3000));
        end->heartbeat.poll(at(poll * 3000 + 1500));  // not due: nothing
      }
      for (End* end : {&one, &other}) {
        // Over a real socket the bytes take their time.
        while (end->link.received() < uint64_t(poll + 1) * sizeof(wire::FrameHeader)) {
          end->link.wait(transport::kReadable, std::chrono::seconds(1));
          end->take();
        }
      }
    }
    CHECK(one.losses == 0);
    CHECK(other.losses == 0);
    CHECK(one.link.bytes_sent() == 40 * sizeof(wire::FrameHeader));
    CHECK(other.link.bytes_sent() == one.link.bytes_sent());
  }
}

TEST_CASE(
    "a connection that swallows everything without a word is given up within four intervals, by an idle end and by one "
    "whose bytes are stuck") {
  for (bool posts : {false, true}) {
    CAPTURE(posts);
    auto ends = transport::simulated_pair({.window_bytes = 64, .swallow_first_to_second = 96});
    End one(std::move(ends.first), GivingUp::resets), other(std::move(ends.second));
    one.heartbeat.poll(at(0));
    other.heartbeat.poll(at(0));
    for (int i = 0; i < 10; ++i) one.take(), other.take(), one.link.pump();
    // The last byte of the other's comes right behind a look.
    other.post();
    one.take();
    uint64_t received = one.link.received();
    for (int i = 0; i < 3; ++i) one.post(), other.take();  // behind the third nothing gets through
    other.take();
    int64_t noticed[2] = {0, 0};
    for (int64_t ms = 1; ms <= 13'000; ++ms) {
      for (int side = 0; side < 2; ++side) {
        End& end = side ? other : one;
        if (posts && ms % 100 == 0 && end.link.state() == Link::State::attached) end.post();
        end.take();
        if (end.heartbeat.poll(at(ms)) && !noticed[side]) noticed[side] = ms;
      }
    }
    CHECK(one.link.received() == received);
    for (int side = 0; side < 2; ++side) {
      CAPTURE(side);
      End& end = side ? other : one;
      CHECK(noticed[side] >= 9000);
      CHECK(noticed[side] <= 12'000);
      CHECK(end.losses == 1);
      CHECK(end.link.state() == Link::State::detached);
      CHECK(end.link.kind_of_loss() == Loss::given_up);
      CHECK(end.link.loss() == "nothing has come over it for 9 s");
    }
  }
}

TEST_CASE(
    "an end that is busy and receives nothing itself does not take its peer for gone, whose bytes lie in the system") {
  auto ends = transport::simulated_pair({.window_bytes = 1 << 20});
  End busy(std::move(ends.first)), peer(std::move(ends.second));
  for (int64_t ms = 0; ms < 60 * 60'000; ms += 3000) {
    CHECK_FALSE(busy.heartbeat.poll(at(ms)));
    peer.take();
    CHECK_FALSE(peer.heartbeat.poll(at(ms)));
  }
  CHECK(busy.losses + peer.losses == 0);
}

TEST_CASE("an end that cannot send because its peer takes nothing is not taken for gone") {
  auto ends = transport::simulated_pair({.window_bytes = 20'000});
  End busy(std::move(ends.first)), peer(std::move(ends.second));
  // More than the way holds.
  for (int i = 0; i < 1000; ++i) peer.post();
  REQUIRE(peer.link.blocked());
  uint64_t appended = (peer.link.lock(), peer.link.appended());
  peer.link.unlock();
  for (int64_t ms = 0; ms < 60'000; ms += 3000) {
    CHECK_FALSE(busy.heartbeat.poll(at(ms)));
    peer.take();
    CHECK_FALSE(peer.heartbeat.poll(at(ms)));
  }
  // What waits to be sent is sign enough when it leaves: no heartbeat has been put behind it.
  std::lock_guard lock(peer.link);
  CHECK(peer.link.appended() == appended);
}

TEST_CASE("a process that was stopped judges nobody for the time that it has not seen") {
  auto ends = transport::simulated_pair({});
  End one(std::move(ends.first)), other(std::move(ends.second));
  one.heartbeat.poll(at(0));
  other.heartbeat.poll(at(0));
  one.take(), other.take();
  one.heartbeat.poll(at(3000));
  // Both stand still for an hour; whoever looks first has heard nothing.
  for (int64_t ms : {3'600'000, 3'603'000}) {
    CHECK_FALSE(one.heartbeat.poll(at(ms)));
    CHECK_FALSE(other.heartbeat.poll(at(ms)));
    one.take(), other.take();
  }
  CHECK(one.losses + other.losses == 0);
}

TEST_CASE("a busy session sends no heartbeats") {
  auto ends = transport::simulated_pair({});
  End one(std::move(ends.first)), other(std::move(ends.second));
  for (int poll = 0; poll < 20; ++poll) {
    one.post();
    for (End* end : {&one, &other}) end->heartbeat.poll(at(poll * 3000));
    one.take(), other.take();
  }
  CHECK(one.link.bytes_sent() == 20 * sizeof(wire::FrameHeader));
}

TEST_CASE("the next connection gets its own time, and a link without one sends and judges nothing") {
  auto ends = transport::simulated_pair({.swallow_first_to_second = 0});
  End one(std::move(ends.first));
  int64_t ms = 0;
  while (one.link.state() == Link::State::attached) one.heartbeat.poll(at(ms += 3000));
  uint64_t sent = one.link.bytes_sent();
  for (int i = 0; i < 10; ++i) CHECK_FALSE(one.heartbeat.poll(at(ms += 3000)));
  CHECK(one.link.bytes_sent() == sent);
  auto next = transport::simulated_pair({.swallow_second_to_first = 0});
  one.link.detach();
  REQUIRE(one.link.attach(std::move(next.first), 0));
  for (int i = 0; i < 3; ++i) CHECK_FALSE(one.heartbeat.poll(at(ms += 3000)));
  CHECK(one.heartbeat.poll(at(ms += 3000)));
}

TEST_CASE("how a connection was lost is told apart: closed, reset, given up, on TCP and TLS") {
  for (const auto& kind : test::pair_kinds()) {
    INFO(kind.name);
    bool tcp = kind.name.find("tcp") != std::string::npos;
    auto lose = [&](auto&& end_it) {
      auto ends = kind.make(test::test_seed());
      End one(std::move(ends.first));
      end_it(ends.second);
      while (one.link.state() == Link::State::attached) {
        one.link.wait(transport::kReadable, std::chrono::seconds(1));
        one.take();
      }
      return one.link.kind_of_loss();
    };
    CHECK(lose([](auto& peer) { peer.reset(); }) == Loss::closed);  // its process has ended
    CHECK(lose([](auto& peer) { peer->shutdown(); }) == Loss::closed);
    if (tcp) CHECK(lose([](auto& peer) { peer->reset(); }) == Loss::reset);  // it has given the connection up
    auto ends = kind.make(test::test_seed());
    End one(std::move(ends.first));
    auto connection = one.link.transport();
    CHECK(one.link.give_up(*connection, "a test wants it", GivingUp::resets));
    CHECK_FALSE(one.link.give_up(*connection, "again", GivingUp::resets));
    CHECK(one.link.kind_of_loss() == Loss::given_up);
    CHECK(one.link.loss() == "a test wants it");
  }
}
