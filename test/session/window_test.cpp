#include <doctest/doctest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <semaphore>
#include <thread>
#include <utility>

#include "client_stub/session/outgoing.hpp"
#include "client_stub/session/send_window.hpp"
#include "test/session/session_fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::test;

TEST_CASE("the window hands out every byte once, in order, and never one that is not acknowledged") {
  for (uint64_t seed = test_seed(); seed < test_seed() + 20; ++seed) {
    INFO("seed ", seed);
    std::mt19937_64 random(seed);
    client::SendWindow window(1 << 16);
    REQUIRE(window.valid());
    std::vector<std::byte> expected, sent;
    std::deque<std::vector<std::byte>> outside;
    uint64_t sequence = 0, acknowledged = 0;
    for (int step = 0; step < 5000; ++step) {
      if (random() % 2) {
        size_t bytes = 1 + random() % (random() % 8 ? 200 : 20'000);
        std::byte* at = window.reserve(bytes + 100, 0);
        if (at) {
          CHECK(reinterpret_cast<uintptr_t>(at) % 8 == 0);
          for (size_t i = 0; i < bytes; ++i) at[i] = std::byte(random());
          expected.insert(expected.end(), at, at + bytes);
          client::ExternalBulk bulk;
          bool external = random() % 10 == 0 && window.external_room();
          if (external) {
            outside.emplace_back(1 + random() % 3000, std::byte(random()));
            bulk = {outside.back().data(), outside.back().size()};
            expected.insert(expected.end(), outside.back().begin(), outside.back().end());
          }
          REQUIRE(window.publish(bytes, ++sequence, external ? &bulk : nullptr));
        }
      }
      if (random() % 3 == 0) {
        auto next = window.next();
        if (next.external) {
          size_t bytes = 1 + random() % (next.external->bytes - next.external->sent);
          auto from = next.external->data + next.external->sent;
          sent.insert(sent.end(), from, from + bytes);
          window.external_sent(bytes);
        } else if (next.ring_pieces) {
          size_t total = 0, left;
          for (size_t i = 0; i < next.ring_pieces; ++i) total += next.ring[i].iov_len;
          left = total = 1 + random() % total;
          for (size_t i = 0; left; ++i) {
            size_t take = std::min(left, next.ring[i].iov_len);
            auto from = static_cast<std::byte*>(next.ring[i].iov_base);
            sent.insert(sent.end(), from, from + take);
            left -= take;
          }
          window.ring_sent(total);
        }
      }
      if (random() % 20 == 0 && sequence > acknowledged) {
        acknowledged += 1 + random() % (sequence - acknowledged);
        CHECK(window.acknowledge(acknowledged));
      }
      REQUIRE(window.appended_bytes() == expected.size());
      REQUIRE(window.sent_bytes() == sent.size());
    }
    CHECK(std::equal(sent.begin(), sent.end(), expected.begin()));
    CHECK(sequence > 500);
    CHECK_FALSE(window.acknowledge(sequence + 1));
    CHECK_FALSE(window.acknowledge(acknowledged - 1));
  }
}

TEST_CASE("a window that is full takes nothing until something is acknowledged") {
  client::SendWindow window(1 << 16);
  uint64_t sequence = 0;
  auto send_everything = [&] {
    for (auto next = window.next(); next.ring_pieces; next = window.next()) window.ring_sent(next.ring[0].iov_len);
  };
  while (window.reserve(1000, 0)) {
    REQUIRE(window.publish(1000, ++sequence, nullptr));
    send_everything();
  }
  CHECK(sequence >= 60);
  CHECK(window.acknowledge(sequence / 2));
  CHECK(window.reserve(1000, 0));
  CHECK_FALSE(window.reserve(40'000, 0));
  CHECK_FALSE(window.reserve(1000, 1 << 16));
}

namespace {

// Takes everything; `taken` is called before the sender is back.
class QuickTransport final : public transport::Transport {
 public:
  std::function<void()> taken;

  transport::IoResult try_send(std::span<const iovec> pieces) noexcept override {
    size_t bytes = 0;
    for (const iovec& piece : pieces) bytes += piece.iov_len;
    if (taken) taken();
    return {transport::IoStatus::ok, bytes};
  }
  transport::IoResult try_receive(std::span<std::byte>) noexcept override { return {transport::IoStatus::would_block}; }
  unsigned wait(unsigned, transport::Nanoseconds) noexcept override { return 0; }
  void wake() noexcept override {}
  void shutdown() noexcept override {}
  int descriptor() const noexcept override { return -1; }
  void abandon_after_fork() noexcept override {}
  std::string peer() const override { return "nobody"; }
};

}  // namespace

TEST_CASE("who waits for room hears of it when the acknowledgement has overtaken the sender") {
  QuickTransport transport;
  client::SessionStats stats;
  client::Outgoing outgoing(transport, stats);
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
  transport.taken = [&] {
    if (std::exchange(overtaken, true)) return;
    CHECK(outgoing.acknowledged(outgoing.last_sequence()));
    CHECK(begin() == client::Outgoing::Begun::full);  // and waits for a change from now on
  };
  outgoing.pump();
  CHECK(overtaken);
  CHECK(outgoing.room_changes() != room_seen);
  CHECK(begin() == client::Outgoing::Begun::ok);
}

TEST_CASE("a client that is faster than its server waits for it and loses nothing") {
  on_every_transport([](const PairKind& kind) {
    // More than the window holds; the server does not read before the client must have been held up, and acknowledges late.
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
    // Takes nothing over, and goes once the client must be stuck: the kernel's buffers are full then as well.
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
  // The last one that fits leaves less room than it takes itself; the next waits.
  constexpr size_t kFit = (wire::kSendWindowBytes - client::kNoticeReserveBytes - client::kAnswerReserveBytes) / (wire::kPostedBulkBytesMax + 64);
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

TEST_CASE("bulk outside the ring is bounded until it is acknowledged") {
  client::SendWindow window(1 << 16);
  client::ExternalBulk bulk{nullptr, wire::kBulkBytesMax};
  uint64_t sequence = 0;
  for (size_t bytes = 0; bytes < wire::kBulkWindowBytes; bytes += wire::kBulkBytesMax) {
    CHECK(window.external_allowed(wire::kBulkBytesMax));
    REQUIRE(window.reserve(64, 0));
    REQUIRE(window.publish(64, ++sequence, &bulk));
    window.next();
    window.ring_sent(64);
    window.external_sent(bulk.bytes);
  }
  CHECK_FALSE(window.external_allowed(1));
  CHECK(window.acknowledge(1));
  CHECK(window.external_allowed(wire::kBulkBytesMax));
}
