// Connections that may resume a session, and connections that may not.
#include "server/worker/connection/resumption.hpp"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <sys/socket.h>

#include "protocol/transport/stream.hpp"
#include "protocol/transport/unix.hpp"
#include "server/worker/connection/limits.hpp"
#include "test/server/worker/server_process.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using gpuwire::test::eventually;

namespace {

constexpr std::chrono::seconds kLimit{120};

// A worker's link with a client that has sent some bytes, and its Resumption for other connections.
struct Fixture {
  Fixture() : ends(std::move(*transport::unix_pair())), client(std::move(ends.first)), worker(std::move(ends.second)) {
    client.outlive_connections();
    worker.outlive_connections();
    exchange();
  }

  // Sends one frame from the client, and receives it.
  void exchange() {
    wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::posted), .sequence = ++frames};
    {
      std::lock_guard lock(client);
      std::byte* at = client.reserve(sizeof header, 0, 0);
      std::memcpy(at, &header, sizeof header);
      REQUIRE(client.publish(sizeof header));
    }
    client.pump();
    wire::FrameHeader arrived;
    auto out = std::as_writable_bytes(std::span(&arrived, 1));
    for (size_t got = 0; got < out.size();) {
      auto piece = worker.try_receive(out.subspan(got));
      if (piece.status != transport::IoStatus::ok) worker.wait(transport::kReadable, kLimit);
      else got += piece.bytes;
    }
    CHECK(arrived.sequence == frames);
  }

  // Returns the client's end of a connection that the broker has passed on.
  std::unique_ptr<transport::Transport> connect() {
    int pair[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    resumption.arrive(OwnedDescriptor(pair[1]), {});
    return transport::adopt_stream(pair[0]);
  }
  tl::expected<uint64_t, resume::Failure> ask(transport::Transport& connection, const resume::Secret& with,
                                              uint64_t attempt) {
    return resume::ask(connection, {id, with, attempt, client.received()}, kLimit);
  }

  const resume::SessionId id{1, 2, 3};
  const resume::Secret secret{4, 5, 6};
  transport::TransportPair ends;
  link::Link client, worker;
  uint64_t frames = 0;
  std::atomic<unsigned> refused{0}, faults{0};
  std::string said;  // the client's statement of its end of the connection; written before the link is attached
  Resumption resumption{
      {.link = worker,
       .id = id,
       .secret = secret,
       .open = [](OwnedDescriptor socket,
                  std::string) -> tl::expected<std::unique_ptr<transport::Transport>, std::string> {
         return transport::adopt_stream(socket.release());
       },
       .proved = [this](const transport::Transport&, const resume::Request& heard) { said = heard.address; },
       .refused = [this](std::string) { ++refused; },
       .fault = [this](std::string) { ++faults; },
       .lanes_max = [] { return 3u; }}};
};

}  // namespace

TEST_CASE_FIXTURE(Fixture,
                  "the session's client goes on over its next connection, also when the one before still stands") {
  for (uint64_t attempt = 1; attempt <= 5; ++attempt) {
    if (attempt % 2) client.detach();
    auto connection = connect();
    auto received = ask(*connection, secret, attempt);
    REQUIRE(received);
    client.detach();
    REQUIRE(client.attach(std::move(connection), *received));
    CHECK(eventually([&] { return worker.state() == link::Link::State::attached; }));
    exchange();
  }
  CHECK(refused == 0);
  CHECK(faults == 0);
}

TEST_CASE_FIXTURE(Fixture, "a wrong secret and an old attempt are refused and disturb nothing") {
  auto first = connect();
  auto received = ask(*first, secret, 7);
  REQUIRE(received);
  client.detach();
  REQUIRE(client.attach(std::move(first), *received));
  CHECK(eventually([&] { return worker.state() == link::Link::State::attached; }));
  resume::Secret wrong = secret;
  wrong[0] ^= 1;
  for (auto [with, attempt] :
       {std::pair(wrong, uint64_t{8}), std::pair(secret, uint64_t{7}), std::pair(secret, uint64_t{0})}) {
    auto connection = connect();
    auto answer = ask(*connection, with, attempt);
    REQUIRE_FALSE(answer);
    CHECK(answer.error().refused);
    exchange();
  }
  CHECK(eventually([&] { return refused.load() == 3; }));
  CHECK(faults == 0);
}

TEST_CASE_FIXTURE(Fixture, "a few of many strangers at once are read, none gets in, and the session goes on") {
  resume::Secret wrong{};
  std::vector<std::thread> strangers;
  std::vector<std::unique_ptr<transport::Transport>> connections;
  constexpr unsigned kStrangers = 100;
  for (unsigned i = 0; i < kStrangers; ++i) connections.push_back(connect());
  std::atomic<unsigned> let_in{0};
  for (auto& connection : connections)
    strangers.emplace_back([&] { let_in += ask(*connection, wrong, 1'000'000).has_value(); });
  for (int i = 0; i < 20; ++i) exchange();
  for (auto& stranger : strangers) stranger.join();
  CHECK(let_in == 0);
  CHECK(eventually([&] { return refused.load() == kStrangers; }));
  exchange();
}

TEST_CASE_FIXTURE(Fixture, "a client that claims to have received what was never sent is a fault") {
  auto connection = connect();
  client.detach();
  CHECK(resume::ask(*connection, {id, secret, 1, 1'000'000}, kLimit));
  CHECK(eventually([&] { return faults.load() == 1; }));
}

TEST_CASE_FIXTURE(Fixture,
                  "lanes join by a proof of their own, all of a set or none, beside the connection that there is") {
  REQUIRE(worker.begin_parts(false));
  struct Asked {
    std::unique_ptr<transport::Transport> connection;
    bool joined;
  };
  auto join = [&](uint64_t attempt, resume::Lane lane, const resume::Secret& with) {
    auto connection = connect();
    auto answer = resume::ask(*connection, {id, with, attempt, 0, {}, {}, lane}, kLimit);
    return Asked{std::move(connection), answer.has_value()};
  };
  resume::Secret wrong = secret;
  wrong[0] ^= 1;
  CHECK_FALSE(join(0, {1, 0, 3}, wrong).joined);
  CHECK_FALSE(join(1, {1, 0, 3}, secret).joined);  // beside a connection that does not exist
  CHECK_FALSE(join(0, {1, 0, 4}, secret).joined);  // more than are allowed
  CHECK_FALSE(join(0, {1, 3, 3}, secret).joined);
  CHECK(eventually([&] { return refused == 4; }));
  auto first = join(0, {1, 2, 3}, secret), second = join(0, {1, 0, 3}, secret);
  CHECK(first.joined);
  CHECK(second.joined);
  CHECK_FALSE(join(0, {1, 0, 3}, secret).joined);  // this lane exists already
  CHECK_FALSE(join(0, {1, 1, 2}, secret).joined);  // a different number of lanes
  CHECK(worker.lanes() == 0);
  auto third = join(0, {1, 1, 3}, secret);
  CHECK(third.joined);
  CHECK(worker.lanes() == 3);
  CHECK_FALSE(join(0, {1, 1, 3}, secret).joined);
  CHECK_FALSE(join(0, {0, 0, 1}, secret).joined);
  CHECK(worker.lanes() == 3);
  // A proof for a lane is not valid for the session's connection.
  auto connection = connect();
  CHECK(ask(*connection, secret, 1));
  CHECK(eventually([&] { return worker.lanes() == 0; }));
  CHECK(faults == 0);
}
