#include "protocol/link/send_window.hpp"

#include <doctest/doctest.h>

#include <deque>
#include <random>
#include <vector>

#include "test/protocol/transport/pairs.hpp"

using namespace gpuwire;
using link::ExternalBulk;
using link::SendWindow;

namespace {

// Takes at most `limit` of the next bytes, as a connection would, and puts them behind `out`.
size_t take(SendWindow& window, std::vector<std::byte>& out, size_t limit, size_t joined_bytes_max = 0) {
  auto next = window.next(joined_bytes_max);
  size_t bytes = 0;
  auto add = [&](const std::byte* from, size_t count) {
    count = std::min(count, limit - bytes);
    out.insert(out.end(), from, from + count);
    bytes += count;
  };
  size_t ring_bytes = 0;
  for (size_t i = 0; i < next.ring_pieces; ++i) {
    ring_bytes += next.ring[i].iov_len;
    add(static_cast<const std::byte*>(next.ring[i].iov_base), next.ring[i].iov_len);
  }
  CHECK(ring_bytes == next.ring_bytes);
  if (next.external) {
    if (ring_bytes != 0) CHECK(next.external->bytes <= joined_bytes_max);
    add(next.external->data + next.offset, next.external->bytes - next.offset);
  }
  window.sent(bytes);
  return bytes;
}

}  // namespace

TEST_CASE(
    "the window hands out every byte in order, again from wherever the peer says, and never one that is not "
    "acknowledged") {
  constexpr size_t kRing = 1 << 19;  // so that the small ring has room for the shorter half
  for (uint64_t seed = test::test_seed(); seed < test::test_seed() + 20; ++seed) {
    INFO("seed ", seed);
    std::mt19937_64 random(seed);
    SendWindow window(kRing, 1 << 16);
    REQUIRE(window.valid());
    std::vector<std::byte> expected, sent;
    std::deque<std::vector<std::byte>> outside;
    uint64_t acknowledged = 0;
    unsigned rewinds = 0;
    for (int step = 0; step < 5000; ++step) {
      if (random() % 2) {
        size_t bytes = 1 + random() % (random() % 8 ? 200 : 20'000);
        if (std::byte* at = window.reserve(bytes + 100, 0)) {
          REQUIRE(reinterpret_cast<uintptr_t>(at) % 8 == 0);
          for (size_t i = 0; i < bytes; ++i) at[i] = std::byte(random());
          expected.insert(expected.end(), at, at + bytes);
          ExternalBulk bulk;
          size_t bulk_bytes = 1 + random() % 3000;
          bool external = random() % 10 == 0 && window.external_allowed(bulk_bytes);
          if (external) {
            outside.emplace_back(bulk_bytes, std::byte(random()));
            bulk = {outside.back().data(), outside.back().size()};
            expected.insert(expected.end(), outside.back().begin(), outside.back().end());
          }
          REQUIRE(window.publish(bytes, external ? &bulk : nullptr));
        }
      }
      if (random() % 3 == 0) take(window, sent, 1 + random() % 4000, random() % 2 ? 1500 : 0);
      if (random() % 20 == 0 && sent.size() > acknowledged) {
        acknowledged += 1 + random() % (sent.size() - acknowledged);
        REQUIRE(window.acknowledge(acknowledged));
      }
      if (random() % 50 == 0) {
        uint64_t position = acknowledged + random() % (sent.size() - acknowledged + 1);
        REQUIRE(window.rewind(position));
        sent.resize(position);
        ++rewinds;
      }
      REQUIRE(window.appended() == expected.size());
      REQUIRE(window.sent() == sent.size());
      REQUIRE(window.used_ring_bytes() <= kRing);
      REQUIRE(window.external_bytes() <= 1 << 16);
    }
    while (take(window, sent, 10'000)) {}
    CHECK(sent == expected);
    CHECK(rewinds > 20);
    CHECK_FALSE(window.acknowledge(sent.size() + 1));
    CHECK_FALSE(window.acknowledge(acknowledged - 1));
    CHECK_FALSE(window.rewind(acknowledged - 1));
    CHECK_FALSE(window.rewind(sent.size() + 1));
    CHECK(window.acknowledge(sent.size()));
    CHECK(window.used_ring_bytes() == 0);
    CHECK(window.pieces() == 0);
  }
}

TEST_CASE("a window that is full takes nothing until something is acknowledged") {
  SendWindow window(1 << 16);
  std::vector<std::byte> sent;
  while (window.reserve(1000, 0)) {
    REQUIRE(window.publish(1000, nullptr));
    take(window, sent, 1000);
  }
  CHECK(sent.size() >= 60'000);
  CHECK(window.acknowledge(sent.size() / 2));
  CHECK(window.reserve(1000, 0));
  CHECK_FALSE(window.reserve(40'000, 0));
  CHECK_FALSE(window.reserve(1000, 1 << 16));
}

TEST_CASE("short frames that are acknowledged soon come back to the same memory; others use all of the window") {
  constexpr size_t kRing = 1 << 20, kSmall = kRing / link::kSmallRingDivisor,
                   kShort = kSmall / link::kSmallRingFrameDivisor;
  SendWindow window(kRing);
  std::vector<std::byte> sent;
  std::byte* first = window.reserve(kShort, 0);
  REQUIRE(first);
  auto place_of_next = [&](size_t bytes) {
    std::byte* at = window.reserve(bytes, 0);
    REQUIRE(at);
    REQUIRE(window.publish(bytes, nullptr));
    while (take(window, sent, bytes)) {}
    return size_t(at - first);
  };
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(place_of_next(kShort) < kSmall);
    REQUIRE(window.acknowledge(sent.size()));
  }
  CHECK(place_of_next(kShort + 1) >= kSmall);
  REQUIRE(window.acknowledge(sent.size()));
  size_t beyond = 0;
  for (size_t bytes = 0; bytes < kRing / 2; bytes += kShort) beyond += place_of_next(kShort) >= kSmall;
  CHECK(beyond >= (kRing / 2 - kSmall) / kShort);
  REQUIRE(window.acknowledge(sent.size()));
  CHECK(place_of_next(kShort) < kSmall);
}

TEST_CASE("bulk outside the ring is bounded until it is acknowledged") {
  SendWindow window(1 << 16);
  ExternalBulk bulk{nullptr, wire::kBulkBytesMax};
  for (size_t bytes = 0; bytes < wire::kBulkWindowBytes; bytes += wire::kBulkBytesMax) {
    CHECK(window.external_allowed(wire::kBulkBytesMax));
    REQUIRE(window.reserve(64, 0));
    REQUIRE(window.publish(64, &bulk));
    window.next();
    window.sent(64);
    window.next();
    window.sent(bulk.bytes);
  }
  CHECK_FALSE(window.external_allowed(1));
  CHECK(window.acknowledge(64 + wire::kBulkBytesMax - 1));
  CHECK_FALSE(window.external_allowed(1));
  CHECK(window.acknowledge(64 + wire::kBulkBytesMax));
  CHECK(window.external_allowed(wire::kBulkBytesMax));
}

TEST_CASE("short bulk outside the ring leaves with the frames before it, long bulk by itself, and what is gathered") {
  SendWindow window(1 << 16);
  std::vector<std::byte> memory(1000);
  const std::function<void(size_t, std::span<std::byte>)> gather = [](size_t, std::span<std::byte>) {};
  const ExternalBulk bulk{memory.data(), memory.size()}, gathered{nullptr, memory.size(), &gather};
  for (const auto& [what, joined_bytes_max, joined] :
       {std::tuple{&bulk, size_t(1000), true}, {&bulk, size_t(999), false}, {&gathered, size_t(1000), false}}) {
    REQUIRE(window.reserve(32, 0));
    REQUIRE(window.publish(32, what));
    auto next = window.next(joined_bytes_max);
    CHECK(next.ring_bytes == 32);
    CHECK((next.external != nullptr) == joined);
    window.sent(32 + 500);
    next = window.next(joined_bytes_max);
    REQUIRE(next.external);
    CHECK(next.ring_pieces == 0);
    CHECK(next.offset == 500);
    window.sent(500);
  }
}

TEST_CASE("the keeper of bulk is released with the acknowledgement of its last byte") {
  SendWindow window(1 << 16);
  auto memory = std::make_shared<std::vector<std::byte>>(1000);
  ExternalBulk bulk{memory->data(), memory->size(), nullptr, memory};
  REQUIRE(window.reserve(32, 0));
  REQUIRE(window.publish(32, &bulk));
  bulk.keeper.reset();
  std::vector<std::byte> sent;
  while (take(window, sent, 100)) {}
  CHECK(window.acknowledge(1031));
  CHECK(memory.use_count() == 2);
  CHECK(window.acknowledge(1032));
  CHECK(memory.use_count() == 1);
}

TEST_CASE("an acknowledgement that overtakes the sender frees when the sender is back") {
  SendWindow window(1 << 16);
  REQUIRE(window.reserve(1000, 0));
  REQUIRE(window.publish(1000, nullptr));
  window.next();
  CHECK(window.acknowledge(1000));
  CHECK(window.used_ring_bytes() == 1000);
  CHECK(window.sent(1000));
  CHECK(window.used_ring_bytes() == 0);
}

TEST_CASE("a window that is advanced frees nothing, and says before it would need memory") {
  SendWindow window(1 << 20);
  auto memory = std::make_shared<std::vector<std::byte>>(1000);
  ExternalBulk bulk{memory->data(), memory->size(), nullptr, memory};
  REQUIRE(window.reserve(32, 0));
  REQUIRE(window.publish(32, &bulk));
  bulk.keeper.reset();
  window.next(2000);
  window.acknowledge(1032);
  window.advance(1032);
  CHECK(memory.use_count() == 2);
  CHECK(window.sent() == 1032);
  window.sent(0);
  CHECK(memory.use_count() == 1);
  // Each bulk outside the ring takes two pieces, one frame behind it a third.
  ExternalBulk next{memory->data(), 1, nullptr, nullptr};
  while (!window.must_grow()) {
    REQUIRE(window.reserve(32, 0));
    REQUIRE(window.publish(32, &next));
  }
  const size_t pieces = window.pieces();
  REQUIRE(window.reserve(32, 0));
  REQUIRE(window.publish(32, nullptr));
  CHECK(window.pieces() == pieces + 1);
  CHECK_FALSE(window.must_grow());
}
