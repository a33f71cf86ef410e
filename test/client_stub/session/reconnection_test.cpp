// A session whose connection is lost, or is silently dead: its detection, the messages to the user, the counters.
#include "client_stub/session/reconnection.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "protocol/transport/simulated.hpp"
#include "test/client_stub/session/session_fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using client::ConnectedSession;
using client::Reconnected;
using client::ReconnectFailure;
using client::Reconnection;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kGrace{60'000};

Reconnection::Clock::time_point after(Reconnection::Clock::time_point begin, int64_t ms) {
  return begin + milliseconds(ms);
}

// A server that continues the session over each of its client's connections. Bytes in flight are lost with a
// connection, so only heartbeats may be in flight.
class Reconnector final : public client::Reconnector {
 public:
  explicit Reconnector(std::atomic<unsigned>& made) : made_(made) {}
  ~Reconnector() override { stop(); }

  // The position that the server reports: all bytes that the client has sent.
  std::atomic<uint64_t> client_sent{0};
  transport::SimulatedOptions next{};

  tl::expected<Reconnected, ReconnectFailure> reconnect(uint64_t) noexcept override {
    stop();
    over_ = false;
    auto ends = transport::simulated_pair(next);
    beating_ = std::thread([this, far = std::move(ends.second)] {
      wire::FrameHeader heartbeat{.kind = uint8_t(wire::FrameKind::control),
                                  .ordinal = uint32_t(wire::ControlOrdinal::heartbeat)};
      iovec piece{&heartbeat, sizeof heartbeat};
      std::byte bytes[4096];
      while (!over_) {
        auto got = far->try_receive(bytes);
        if (got.status != transport::IoStatus::ok && got.status != transport::IoStatus::would_block) return;
        if (far->try_send({&piece, 1}).status == transport::IoStatus::failed) return;
        far->wait(transport::kReadable, milliseconds(1));
      }
    });
    ++made_;
    made_.notify_all();
    return Reconnected{std::move(ends.first), client_sent};
  }

 private:
  void stop() {
    over_ = true;
    if (beating_.joinable()) beating_.join();
  }

  std::atomic<unsigned>& made_;
  std::atomic<bool> over_{false};
  std::thread beating_;
};

}  // namespace

TEST_CASE(
    "attempts come soon at first and then every two seconds, until the grace is over; the user hears of a loss past "
    "two seconds and of its end, once each") {
  std::vector<std::string> lines;
  Reconnection attempts({kGrace, kGrace}, "no route to host", [&](const std::string& line) { lines.push_back(line); });
  auto begin = Reconnection::Clock::now();
  int64_t ms = 0;
  unsigned made = 0;
  milliseconds longest{0};
  for (auto delay = attempts.next_delay(after(begin, ms), "no route to host"); delay.count() >= 0;
       delay = attempts.next_delay(after(begin, ms), "no route to host")) {
    CHECK(lines.empty() == (ms < 2000));
    longest = std::max(longest, delay);
    ms += std::max<int64_t>(delay.count(), 1);
    ++made;
  }
  CHECK(ms >= kGrace.count() - 10);
  CHECK(ms <= kGrace.count() + 2000);
  CHECK(longest <= Reconnection::kDelayMax);
  CHECK(made > 30);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("the connection was lost (no route to host); trying for ") == 0);
  attempts.succeeded(after(begin, 12'345));
  REQUIRE(lines.size() == 2);
  CHECK(lines[1].find("connected again after 12.") == 0);

  Reconnection brief({kGrace, kGrace}, "reset", [&](const std::string&) { FAIL("a short loss is nobody's business"); });
  begin = Reconnection::Clock::now();
  CHECK(brief.next_delay(after(begin, 10), "reset").count() >= 0);
  CHECK(brief.succeeded(after(begin, 1500)) >= milliseconds(1499));
}

TEST_CASE("a line about a loss has its cause beside that of the last attempt, and the time that the server gives it") {
  std::vector<std::string> lines;
  Reconnection attempts({.tried = milliseconds(300'000), .told = milliseconds(20'000)},
                        "the other side closed the connection",
                        [&](const std::string& line) { lines.push_back(line); });
  auto begin = Reconnection::Clock::now();
  CHECK(attempts.next_delay(after(begin, 2500), "connection refused").count() >= 0);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] ==
        "the connection was lost (the other side closed the connection; now: connection refused); trying for 17 s to "
        "reconnect");
  // The server may have noticed the loss later, and keep the session for longer.
  CHECK(attempts.next_delay(after(begin, 25'000), "connection refused").count() >= 0);
}

TEST_CASE("a line about a loss names a time below a second, and does not say that the client tries for 0 s") {
  std::vector<std::string> lines;
  Reconnection attempts({.tried = milliseconds(300'000), .told = milliseconds(500)}, "reset",
                        [&](const std::string& line) { lines.push_back(line); });
  CHECK(attempts.next_delay(after(Reconnection::Clock::now(), 2500), "reset").count() >= 0);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] ==
        "the connection was lost (reset); trying to reconnect, but the server keeps the session for 0.5 s only");
}

TEST_CASE("a session without a call, and one that waits for a reply, notice that their connection leads nowhere") {
  for (bool waits : {false, true}) {
    CAPTURE(waits);
    // The handshake passes, and then nothing in either direction, without an error.
    auto ends = transport::simulated_pair({});
    std::unique_ptr<ConnectedSession> session;
    RecordingHandler handler;
    FakeServer server(
        std::move(ends.second),
        [](FakeServer& self) {
          while (self.next()) {}
        },
        FakeServer::Begins::with_hello);
    auto greeted = ConnectedSession::greet(std::move(ends.first), "test:1", handler);
    REQUIRE(greeted);
    session = std::move(*greeted);
    std::atomic<unsigned> made{0};
    auto reconnector = std::make_unique<Reconnector>(made);
    Reconnector& way = *reconnector;
    // This server answers no heartbeat, so its connection soon counts as dead; the following connections swallow all
    // bytes, and are detected one after the other.
    way.next = {.swallow_first_to_second = 1};
    way.client_sent = 0;
    std::thread caller;
    session->outlive_connections(std::move(reconnector), {kGrace, kGrace}, milliseconds(2));
    if (waits)
      caller = std::thread([&] {
        client::call<schema::Source, schema::Result>(
            *session, 3, 0, client::message_words<schema::Source>(), [](auto) {}, [](auto) {});
      });
    for (unsigned seen = 0; seen < 1; seen = made) made.wait(seen);
    CHECK(session->stats().losses >= 1);
    CHECK(handler.ends == 0);
    session->close();
    if (caller.joinable()) caller.join();
    session.reset();
    server.connection().shutdown();
  }
}

TEST_CASE(
    "heartbeats of a client that does nothing arrive, and a server that sends them although none were agreed is at "
    "fault") {
  auto ends = transport::simulated_pair({});
  FakeServer server(
      std::move(ends.second), [](FakeServer& self) { self.next(); }, FakeServer::Begins::with_hello);
  RecordingHandler handler;
  auto session = ConnectedSession::greet(std::move(ends.first), "test:1", handler);
  REQUIRE(session);
  std::atomic<unsigned> made{0};
  // A long heartbeat interval: the case does not test this server's silence.
  (*session)->outlive_connections(std::make_unique<Reconnector>(made), {kGrace, kGrace}, milliseconds(50));
  while (server.heartbeats() == 0) std::this_thread::yield();
  (*session)->close();

  Fixture plain(transport::simulated_pair({}), [](FakeServer& self) {
    self.send_header({.kind = uint8_t(wire::FrameKind::control), .ordinal = uint32_t(wire::ControlOrdinal::heartbeat)});
    while (self.next()) self.skip_bulk();
  });
  std::string text = stderr_of([&] { CHECK(plain.call(1) == CUDA_ERROR_DEVICE_UNAVAILABLE); });
  CHECK(text.find("a control frame in the middle of a session") != std::string::npos);
}

namespace {

// Connections that end at once, before they have carried a byte.
class Fruitless final : public client::Reconnector {
 public:
  explicit Fruitless(std::atomic<unsigned>& made) : made_(made) {}
  tl::expected<Reconnected, ReconnectFailure> reconnect(uint64_t) noexcept override {
    ++made_;
    auto ends = transport::simulated_pair({});
    ends.second->shutdown();
    return Reconnected{std::move(ends.first), 0};
  }

 private:
  std::atomic<unsigned>& made_;
};

}  // namespace

TEST_CASE("a connection that brings nothing is no success: attempts become rarer, and the grace ends them") {
  auto ends = transport::simulated_pair({});
  RecordingHandler handler;
  FakeServer server(
      std::move(ends.second), [](FakeServer& self) { self.next(); }, FakeServer::Begins::with_hello);
  auto session = ConnectedSession::greet(std::move(ends.first), "test:1", handler);
  REQUIRE(session);
  std::atomic<unsigned> made{0};
  (*session)->outlive_connections(std::make_unique<Fruitless>(made), {milliseconds(1500), milliseconds(1500)},
                                  milliseconds(0));
  std::string text = stderr_of([&] {
    CHECK(client::call<schema::Source, schema::Result>(
              **session, 3, 0, client::message_words<schema::Source>(), [](auto) {}, [](auto) {}) ==
          CUDA_ERROR_DEVICE_UNAVAILABLE);
  });
  // Attempts after 50 ms, and twice as much each time, with jitter, within the grace, also on a slow machine.
  CHECK(made >= 2);
  CHECK(made <= 40);
  CHECK(text.find("the session does not go on") != std::string::npos);
}
