// What every transport has to do. Each test runs on all of them.
#include <doctest/doctest.h>

#include <sys/socket.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "test/protocol/transport/pairs.hpp"

using namespace gpuwire::transport;
using gpuwire::test::Ends;
using gpuwire::test::pair_kinds;
using gpuwire::test::test_seed;

namespace {

constexpr std::chrono::seconds kLimit{120};

std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = std::byte(random());
  return bytes;
}

IoResult send_all_of(Transport& transport, std::span<const std::byte> bytes) {
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return send_all(transport, {&piece, 1}, kLimit);
}

// Sends from another thread, because a transport holds only so much.
std::vector<std::byte> carry(Transport& from, Transport& to, std::span<const std::byte> bytes) {
  std::thread sender([&] { send_all_of(from, bytes); });
  std::vector<std::byte> arrived(bytes.size());
  auto result = receive_all(to, arrived, kLimit);
  sender.join();
  arrived.resize(result.bytes);
  return arrived;
}

template <class Body>
void on_every_transport(Body&& body) {
  for (const auto& kind : pair_kinds()) {
    SUBCASE(kind.name.c_str()) {
      INFO("transport: ", kind.name, ", seed ", test_seed());
      Ends ends = kind.make(test_seed());
      REQUIRE(ends.first);
      REQUIRE(ends.second);
      body(*ends.first, *ends.second, ends);
    }
  }
}

}  // namespace

TEST_CASE("bytes arrive complete and in order, both ways") {
  on_every_transport([](Transport& a, Transport& b, Ends&) {
    auto bytes = random_bytes(600'001, test_seed());
    CHECK(carry(a, b, bytes) == bytes);
    CHECK(carry(b, a, bytes) == bytes);
  });
}

TEST_CASE("both directions work at the same time") {
  on_every_transport([](Transport& a, Transport& b, Ends&) {
    auto there = random_bytes(300'000, 1), back = random_bytes(300'000, 2);
    std::vector<std::byte> got_back;
    std::thread other([&] { got_back = carry(b, a, back); });
    auto got_there = carry(a, b, there);
    other.join();
    CHECK(got_there == there);
    CHECK(got_back == back);
  });
}

TEST_CASE("many pieces are sent as one stream") {
  on_every_transport([](Transport& a, Transport& b, Ends&) {
    auto bytes = random_bytes(40'000, 3);
    std::vector<iovec> pieces;
    for (size_t at = 0, step = 0; at < bytes.size(); at += step) {
      step = std::min<size_t>(1 + at % 977, bytes.size() - at);
      pieces.push_back({bytes.data() + at, step});
      if (at % 3 == 0) pieces.push_back({bytes.data(), 0});
    }
    REQUIRE(pieces.size() > kPiecesMax);
    std::thread sender([&] { CHECK(send_all(a, pieces, kLimit).bytes == bytes.size()); });
    std::vector<std::byte> arrived(bytes.size());
    CHECK(receive_all(b, arrived, kLimit).status == IoStatus::ok);
    sender.join();
    CHECK(arrived == bytes);
  });
}

TEST_CASE("receiving and sending without waiting say when they would have to wait") {
  on_every_transport([](Transport& a, Transport&, Ends&) {
    std::byte out[64];
    CHECK(a.try_receive(out).status == IoStatus::would_block);
    CHECK(a.wait(kReadable, std::chrono::nanoseconds(0)) == 0);
    auto bytes = random_bytes(1 << 20, 4);
    iovec piece{bytes.data(), bytes.size()};
    IoResult result;
    uint64_t total = 0;
    do {
      result = a.try_send({&piece, 1});
      total += result.bytes;
      REQUIRE(total < 1u << 30);
    } while (result.status == IoStatus::ok);
    CHECK(result.status == IoStatus::would_block);
    CHECK(a.wait(kWritable, std::chrono::nanoseconds(0)) == 0);
  });
}

TEST_CASE("a sender that was held up goes on when the receiver has made room") {
  on_every_transport([](Transport& a, Transport& b, Ends&) {
    auto bytes = random_bytes(1 << 20, 5);
    iovec piece{bytes.data(), bytes.size()};
    while (a.try_send({&piece, 1}).status == IoStatus::ok) {}
    std::thread waiter([&] { CHECK((a.wait(kWritable, kLimit) & kWritable)); });
    std::vector<std::byte> sink(1 << 16);
    while (!a.wait(kWritable, std::chrono::nanoseconds(0)))
      if (b.try_receive(sink).status == IoStatus::would_block) b.wait(kReadable, std::chrono::milliseconds(1));
    waiter.join();
  });
}

TEST_CASE("waiting ends when bytes arrive") {
  on_every_transport([](Transport& a, Transport& b, Ends&) {
    std::thread waiter([&] { CHECK(b.wait(kReadable, kLimit) == kReadable); });
    CHECK(send_all_of(a, random_bytes(1, 6)).status == IoStatus::ok);
    waiter.join();
  });
}

TEST_CASE("a wait for a wake-up ends by it, also by one that came before, and only once") {
  on_every_transport([](Transport& a, Transport&, Ends&) {
    std::thread waiter([&] { CHECK(a.wait(kReadable | kWoken, kLimit) == kWoken); });
    a.wake();
    waiter.join();
    CHECK(a.wait(kWoken, std::chrono::nanoseconds(0)) == 0);
    a.wake();
    a.wake();
    CHECK(a.wait(kReadable, std::chrono::nanoseconds(0)) == 0);
    CHECK(a.wait(kWoken, std::chrono::nanoseconds(0)) == kWoken);
    CHECK(a.wait(kWoken, std::chrono::nanoseconds(0)) == 0);
  });
}

TEST_CASE("data that were sent before a shutdown still arrive, then comes the end") {
  on_every_transport([](Transport& a, Transport& b, Ends&) {
    auto bytes = random_bytes(1000, 7);
    CHECK(send_all_of(a, bytes).status == IoStatus::ok);
    a.shutdown();
    std::vector<std::byte> arrived(2000);
    auto result = receive_all(b, arrived, kLimit);
    CHECK(result.status == IoStatus::closed);
    CHECK(result.bytes == bytes.size());
    CHECK((b.wait(kReadable, std::chrono::nanoseconds(0)) & kReadable));
  });
}

TEST_CASE("a shutdown from another thread ends a wait on this side") {
  on_every_transport([](Transport& a, Transport&, Ends&) {
    std::thread waiter([&] {
      CHECK(a.wait(kReadable, kLimit) == kReadable);
      std::byte out[8];
      CHECK(a.try_receive(out).status != IoStatus::ok);
      CHECK(a.try_receive(out).status != IoStatus::would_block);
    });
    a.shutdown();
    waiter.join();
  });
}

TEST_CASE("sending to a side that is gone fails, in the end, without a signal") {
  on_every_transport([](Transport& a, Transport&, Ends& ends) {
    ends.second.reset();
    auto bytes = random_bytes(1000, 8);
    iovec piece{bytes.data(), bytes.size()};
    IoResult result;
    for (int tries = 0; tries < 100'000; ++tries) {
      result = a.try_send({&piece, 1});
      if (result.status == IoStatus::failed) break;
      if (result.status == IoStatus::would_block) a.wait(kWritable, std::chrono::seconds(1));
    }
    CHECK(result.status == IoStatus::failed);
    CHECK(result.error != 0);
    CHECK_FALSE(describe(result).empty());
  });
}

TEST_CASE("a bounded receive returns what it got when time runs out") {
  on_every_transport([](Transport& a, Transport& b, Ends&) {
    CHECK(send_all_of(a, random_bytes(10, 9)).status == IoStatus::ok);
    while (!b.wait(kReadable, kLimit)) {}
    std::vector<std::byte> out(20);
    auto result = receive_all(b, out, std::chrono::milliseconds(20));
    CHECK(result.status == IoStatus::would_block);
    CHECK(result.bytes == 10);
  });
}
