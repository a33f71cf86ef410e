#include <doctest/doctest.h>

#include <numeric>
#include <thread>
#include <vector>

#include "protocol/transport/frame_receiver.hpp"
#include "test/protocol/transport/pairs.hpp"

using namespace gpuwire;
using namespace gpuwire::transport;

namespace {

constexpr std::chrono::seconds kLimit{120};

void append(std::vector<std::byte>& stream, wire::FrameHeader header, size_t words, size_t bulk) {
  header.message_words = uint32_t(words);
  header.bulk_bytes = bulk;
  auto bytes = std::as_bytes(std::span(&header, 1));
  stream.insert(stream.end(), bytes.begin(), bytes.end());
  for (size_t at = 0; at < words * 8 + bulk; ++at) stream.push_back(std::byte(at * 7));
}

}  // namespace

TEST_CASE("frames with messages and bulk of any length come out whole on every transport") {
  for (const auto& kind : test::pair_kinds()) {
    SUBCASE(kind.name.c_str()) {
      auto ends = kind.make(test::test_seed());
      std::vector<std::byte> stream;
      std::vector<std::pair<size_t, size_t>> sizes = {
          {0, 0}, {1, 1}, {3, 7}, {60'000, 3}, {2, 300'001}, {1, 0}, {wire::kMessageWordsMax, 13}, {1, 64}};
      for (size_t i = 0; i < sizes.size(); ++i)
        append(stream, {.kind = uint8_t(wire::FrameKind::posted), .ordinal = 1000, .sequence = i + 1}, sizes[i].first,
               sizes[i].second);
      std::thread sender([&] {
        iovec piece{stream.data(), stream.size()};
        CHECK(send_all(*ends.first, {&piece, 1}, kLimit).status == IoStatus::ok);
        ends.first->shutdown();
      });
      FrameReceiver receiver(*ends.second, wire::Sender::client);
      for (size_t i = 0; i < sizes.size(); ++i) {
        REQUIRE(receiver.next(kLimit) == Received::frame);
        CHECK(receiver.header().sequence == i + 1);
        auto message = receiver.message();
        REQUIRE(message.size() == sizes[i].first);
        CHECK(reinterpret_cast<uintptr_t>(message.begin()) % 8 == 0);
        size_t wrong = 0;
        for (size_t at = 0; at < message.size() * 8; ++at) wrong += message.asBytes()[at] != uint8_t(at * 7);
        CHECK(wrong == 0);
        CHECK(receiver.bulk_left() == sizes[i].second);
        if (i % 2) continue;  // what is left is skipped
        std::vector<std::byte> bulk(sizes[i].second);
        CHECK(receiver.read_bulk(bulk));
        for (size_t at = 0; at < bulk.size(); ++at) wrong += bulk[at] != std::byte((at + message.size() * 8) * 7);
        CHECK(wrong == 0);
      }
      CHECK(receiver.next(kLimit) == Received::ended);
      CHECK_FALSE(receiver.reason().empty());
      sender.join();
    }
  }
}

TEST_CASE("bulk that is cut short is an end, and more than there is cannot be asked for") {
  auto ends = test::pair_kinds()[2].make(test::test_seed());
  std::vector<std::byte> stream;
  append(stream, {.kind = uint8_t(wire::FrameKind::posted), .sequence = 1}, 1, 100);
  stream.resize(stream.size() - 1);
  iovec piece{stream.data(), stream.size()};
  REQUIRE(send_all(*ends.first, {&piece, 1}, kLimit).status == IoStatus::ok);
  ends.first->shutdown();
  FrameReceiver receiver(*ends.second, wire::Sender::client);
  REQUIRE(receiver.next(kLimit) == Received::frame);
  std::vector<std::byte> bulk(101);
  CHECK_FALSE(receiver.read_bulk(bulk));
  CHECK(receiver.bulk_left() == 100);
  bulk.resize(100);
  CHECK_FALSE(receiver.read_bulk(bulk));
  CHECK(receiver.ended());
}
