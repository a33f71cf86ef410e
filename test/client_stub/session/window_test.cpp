#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "client_stub/session/outgoing.hpp"
#include "protocol/wire/lanes.hpp"
#include "test/client_stub/session/session_fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::test;

namespace {

// Accepts all bytes; `taken` is called before the send returns.
class QuickTransport final : public transport::Transport {
 public:
  std::function<void(size_t bytes)> taken;
  std::optional<wire::FrameHeader> arrived;  // to be received once

  transport::IoResult try_send(std::span<const iovec> pieces) noexcept override {
    size_t bytes = 0;
    for (const iovec& piece : pieces) bytes += piece.iov_len;
    if (taken) taken(bytes);
    return {transport::IoStatus::ok, bytes};
  }
  transport::IoResult try_receive(std::span<std::byte> out) noexcept override {
    if (!arrived) return {transport::IoStatus::would_block};
    std::memcpy(out.data(), &*arrived, sizeof *arrived);
    arrived.reset();
    return {transport::IoStatus::ok, sizeof *arrived};
  }
  unsigned wait(unsigned, transport::Nanoseconds) noexcept override { return 0; }
  void wake() noexcept override {}
  void finish() noexcept override {}
  void shutdown() noexcept override {}
  int descriptor() const noexcept override { return -1; }
  void abandon_after_fork() noexcept override {}
  std::string peer() const override { return "nobody"; }
};

}  // namespace

TEST_CASE("a thread that waits for room is notified when the acknowledgement has overtaken the sender") {
  auto owned = std::make_unique<QuickTransport>();
  QuickTransport& transport = *owned;
  link::Link link(std::move(owned));
  client::SessionStats stats;
  client::Outgoing outgoing(link, stats);
  std::vector<std::byte> bytes(200 * 1024);
  uint64_t room_seen = 0;
  auto begin = [&] {
    client::Session::Slot slot;
    auto begun = outgoing.begin(wire::FrameKind::posted, 1, 0, 1, {bytes.data(), bytes.size()}, 0, slot, room_seen);
    if (begun == client::Outgoing::Begun::ok) outgoing.commit(1);
    return begun;
  };
  while (begin() == client::Outgoing::Begun::ok) {}
  bool overtaken = false;
  transport.taken = [&](size_t sent) {
    if (std::exchange(overtaken, true)) return;
    wire::FrameHeader acknowledgement{.kind = uint8_t(wire::FrameKind::acknowledge), .sequence = sent};
    transport.arrived = acknowledgement;
    std::byte frame[sizeof acknowledgement];
    CHECK(link.try_receive(frame).status == transport::IoStatus::ok);
    CHECK_FALSE(link.bad_acknowledgement());
    CHECK(begin() == client::Outgoing::Begun::full);  // it waits for a change from now on
  };
  link.pump();
  CHECK(overtaken);
  CHECK(link.room_changes() != room_seen);
  CHECK(begin() == client::Outgoing::Begun::ok);
}

TEST_CASE("bulk that no lanes carry leaves together with its frame, and the frames behind it in the next call") {
  for (const size_t bulk_bytes : {size_t(100) << 10, wire::kPostedBulkBytesMax + 1, (size_t(1) << 20) - 1}) {
    CAPTURE(bulk_bytes);
    auto owned = std::make_unique<QuickTransport>();
    QuickTransport& transport = *owned;
    link::Link link(std::move(owned));
    REQUIRE(link.begin_parts(true));
    client::SessionStats stats;
    client::Outgoing outgoing(link, stats);
    const auto bytes = std::make_shared<std::vector<std::byte>>(bulk_bytes);
    auto post = [&](const client::Bulk& bulk) {
      client::Session::Slot slot;
      uint64_t room_seen = 0;
      REQUIRE(outgoing.begin(wire::FrameKind::posted, 1, 0, 1, bulk, 0, slot, room_seen) ==
              client::Outgoing::Begun::ok);
      outgoing.commit(1);
    };
    const size_t frame_bytes = sizeof(wire::FrameHeader) + sizeof(capnp::word);
    const size_t part_bytes = bulk_bytes > wire::kPostedBulkBytesMax ? sizeof(wire::PartHeader) : 0;
    for (int i = 0; i < 2; ++i) {
      post({});
      post({.data = bytes->data(), .bytes = bulk_bytes, .keeper = bytes});
      post({});
      std::vector<size_t> calls;
      transport.taken = [&](size_t sent) { calls.push_back(sent); };
      CHECK(link.pump());
      CHECK(calls == std::vector<size_t>{2 * frame_bytes + part_bytes + bulk_bytes, frame_bytes});
      CHECK(link.bulk_bytes() == (part_bytes ? (i + 1) * bulk_bytes : 0));
    }
  }
}

TEST_CASE("a client that is faster than its server waits for it and loses nothing") {
  on_every_transport([](const PairKind& kind) {
    // More than the window holds; the server reads only after the client must have been blocked, and acknowledges late.
    constexpr size_t kBulk = 200 * 1024, kCalls = 3 * wire::kSendWindowBytes / kBulk;
    std::binary_semaphore read{0};
    uint64_t frames = 0;
    {
      Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
        server.acknowledge_every = 10;
        read.acquire();
        while (server.next()) {
          server.skip_bulk();
          ++frames;
          if (wire::FrameKind(server.header().kind) == wire::FrameKind::called) server.reply(server.header().sequence);
        }
      });
      std::vector<std::byte> bytes(kBulk);
      for (size_t i = 0; i < kCalls; ++i) {
        if (i == 50) read.release();
        REQUIRE(fixture.post(i, {bytes.data(), bytes.size()}) == CUDA_SUCCESS);
      }
      CHECK(fixture.call(1) == CUDA_SUCCESS);
    }
    CHECK(frames == kCalls + 1);
  });
}

TEST_CASE("several threads wait for room at once") {
  on_every_transport([](const PairKind& kind) {
    constexpr size_t kBulk = 250 * 1024;
    uint64_t frames = 0;
    {
      Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
        server.acknowledge_every = 16;
        while (server.next()) {
          server.skip_bulk();
          ++frames;
          if (wire::FrameKind(server.header().kind) == wire::FrameKind::called) server.reply(server.header().sequence);
        }
      });
      std::vector<std::thread> threads;
      std::atomic<int> wrong{0};
      for (int thread = 0; thread < 4; ++thread)
        threads.emplace_back([&] {
          std::vector<std::byte> bytes(kBulk);
          for (int i = 0; i < 40; ++i)
            if (fixture.post(1, {bytes.data(), bytes.size()}) != CUDA_SUCCESS) ++wrong;
        });
      for (auto& thread : threads) thread.join();
      CHECK(wrong == 0);
      CHECK(fixture.call(1) == CUDA_SUCCESS);
    }
    CHECK(frames == 161);
  });
}

TEST_CASE("calls that wait for room end when the session does") {
  Fixture fixture(pair_kinds()[1].make(1), [](FakeServer& server) {
    // Acknowledges nothing, and closes once the client must be blocked: the kernel's buffers are full by then, too.
    while (server.last_sequence() < 50 && server.next()) server.skip_bulk();
  });
  std::vector<std::byte> bytes(wire::kPostedBulkBytesMax);
  CUresult result = CUDA_SUCCESS;
  std::string text = stderr_of([&] {
    for (int i = 0; i < 200 && result == CUDA_SUCCESS; ++i) result = fixture.post(1, {bytes.data(), bytes.size()});
  });
  CHECK(result == CUDA_ERROR_DEVICE_UNAVAILABLE);
  CHECK(text.find("gpuwire: test:1: the connection to the server was lost") == 0);
}

TEST_CASE("an answer finds room in a window that takes nothing else") {
  std::binary_semaphore read{0};
  std::atomic<bool> full{true};
  Fixture fixture(pair_kinds()[1].make(1), [&](FakeServer& server) {
    server.acknowledge_every = 1;
    read.acquire();
    while (server.next()) {
      server.skip_bulk();
      if (wire::FrameKind(server.header().kind) == wire::FrameKind::called) server.reply(server.header().sequence);
    }
  });
  std::vector<std::byte> bytes(wire::kPostedBulkBytesMax);
  // The last call that fits leaves less room than it takes itself; the next one waits.
  constexpr size_t kLarge = wire::kSendWindowBytes - wire::kSendWindowBytes / link::kSmallRingDivisor;
  constexpr size_t kFit =
      (kLarge - client::kNoticeReserveBytes - client::kAnswerReserveBytes - link::kAcknowledgeReserveBytes) /
      (wire::kPostedBulkBytesMax + 64);
  for (size_t i = 0; i < kFit; ++i) REQUIRE(fixture.post(i, {bytes.data(), bytes.size()}) == CUDA_SUCCESS);
  std::thread waits([&] {
    CHECK(fixture.post(1, {bytes.data(), bytes.size()}) == CUDA_SUCCESS);
    full = false;
  });
  {
    client::Session::Answering answering;
    for (int i = 0; i < 3; ++i) CHECK(fixture.post(1, {bytes.data(), bytes.size()}) == CUDA_SUCCESS);
  }
  CHECK(full);
  read.release();
  waits.join();
  CHECK(fixture.call(1) == CUDA_SUCCESS);
}
