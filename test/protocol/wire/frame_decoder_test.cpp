#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "protocol/wire/frame_decoder.hpp"
#include "protocol/wire/ordinals.hpp"

using namespace gpuwire::wire;
using Next = FrameDecoder::Next;

namespace {

struct Frame {
  FrameHeader header;
  std::vector<uint8_t> message, bulk;
};

void append(std::vector<std::byte>& stream, const Frame& frame) {
  auto put = [&](const void* data, size_t bytes) {
    auto from = static_cast<const std::byte*>(data);
    stream.insert(stream.end(), from, from + bytes);
  };
  put(&frame.header, sizeof frame.header);
  put(frame.message.data(), frame.message.size());
  put(frame.bulk.data(), frame.bulk.size());
}

Frame make_frame(uint64_t sequence, size_t words, size_t bulk, std::mt19937_64& random) {
  Frame frame;
  frame.header = {.kind = uint8_t(FrameKind::posted),
                  .ordinal = 1001,
                  .sequence = sequence,
                  .message_words = uint32_t(words),
                  .bulk_bytes = bulk};
  frame.message.resize(words * 8);
  frame.bulk.resize(bulk);
  for (auto& byte : frame.message) byte = uint8_t(random());
  for (auto& byte : frame.bulk) byte = uint8_t(random());
  return frame;
}

// Puts in at most `most` bytes; returns how many.
size_t feed(FrameDecoder& decoder, std::span<const std::byte> bytes, size_t most) {
  auto space = decoder.space();
  REQUIRE(space.size() > 0);
  size_t count = std::min({most, bytes.size(), space.size()});
  std::memcpy(space.data(), bytes.data(), count);
  decoder.filled(count);
  return count;
}

Next decode_header(FrameHeader header, Sender sender, std::string* why = nullptr) {
  FrameDecoder decoder(sender);
  feed(decoder, std::as_bytes(std::span(&header, 1)), sizeof header);
  Next next = decoder.next();
  if (why) *why = decoder.fault();
  return next;
}

}  // namespace

TEST_CASE("frames come out as they went in, whatever pieces the bytes arrive in") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed ", seed);
    std::mt19937_64 random(seed);
    std::vector<Frame> frames;
    std::vector<std::byte> stream;
    for (uint64_t i = 1; i <= 30; ++i) {
      size_t words = random() % 10 ? random() % 40 : random() % kMessageWordsMax;
      size_t bulk = random() % 3 ? 0 : random() % 5000;
      frames.push_back(make_frame(i, words, bulk, random));
      append(stream, frames.back());
    }
    FrameDecoder decoder(Sender::client);
    size_t at = 0, largest = seed % 4 == 0 ? 1 + random() % 16 : 1 + random() % 20'000;
    if (largest < 64) stream.resize(std::min<size_t>(stream.size(), 400'000));
    size_t decoded = 0;
    for (;;) {
      Next next = decoder.next();
      REQUIRE(next != Next::fault);
      if (next == Next::need_more) {
        if (at == stream.size()) break;
        at += feed(decoder, std::span(stream).subspan(at), 1 + random() % largest);
        continue;
      }
      const Frame& expected = frames[decoded++];
      CHECK(decoder.header().sequence == expected.header.sequence);
      auto message = decoder.message().asBytes();
      REQUIRE(message.size() == expected.message.size());
      CHECK(reinterpret_cast<uintptr_t>(message.begin()) % 8 == 0);
      CHECK(std::equal(message.begin(), message.end(), expected.message.begin()));
      size_t bulk_at = 0;
      bool matches = true;
      while (decoder.bulk_left() && (at < stream.size() || !decoder.buffered_bulk().empty())) {
        auto buffered = decoder.buffered_bulk();
        if (!buffered.empty()) {
          size_t take = 1 + random() % buffered.size();
          matches &= std::memcmp(buffered.data(), expected.bulk.data() + bulk_at, take) == 0;
          decoder.take_bulk(take);
          bulk_at += take;
        } else {
          size_t direct = std::min<size_t>({1 + random() % 1000, size_t(decoder.bulk_left()), stream.size() - at});
          matches &= std::memcmp(stream.data() + at, expected.bulk.data() + bulk_at, direct) == 0;
          decoder.bulk_read_elsewhere(direct);
          at += direct;
          bulk_at += direct;
        }
      }
      CHECK(matches);
      if (decoder.bulk_left()) break;
    }
    if (at == stream.size() && largest >= 64) CHECK(decoded == frames.size());
  }
}

TEST_CASE("each kind of frame is accepted from the side that sends it and from no other") {
  for (int kind = 0; kind < 256; ++kind) {
    INFO(kind);
    FrameHeader header{.kind = uint8_t(kind)};
    bool both = kind == int(FrameKind::control) || kind == int(FrameKind::acknowledge);
    bool client = both || kind == int(FrameKind::posted) || kind == int(FrameKind::called);
    bool server = both || kind == int(FrameKind::reply) || kind == int(FrameKind::notice);
    CHECK(decode_header(header, Sender::client) == (client ? Next::frame : Next::fault));
    CHECK(decode_header(header, Sender::server) == (server ? Next::frame : Next::fault));
  }
}

TEST_CASE("a header out of its limits is a fault before anything of the frame is waited for") {
  FrameHeader good{.kind = uint8_t(FrameKind::called), .ordinal = kOrdinalMax - 1};
  CHECK(decode_header(good, Sender::client) == Next::frame);
  auto why = [&](auto&& change) {
    FrameHeader header = good;
    change(header);
    std::string reason;
    CHECK(decode_header(header, Sender::client, &reason) == Next::fault);
    return reason;
  };
  CHECK(why([](auto& h) { h.magic = 0x5746; }).find("no frame") == 0);
  CHECK(why([](auto& h) { h.flags = 1; }).find("flags") != std::string::npos);
  CHECK(why([](auto& h) { h.ordinal = kOrdinalMax; }).find("ordinal 4096") != std::string::npos);
  CHECK(why([](auto& h) { h.message_words = kMessageWordsMax + 1; }).find("message") != std::string::npos);
  CHECK(why([](auto& h) { h.message_words = ~0u; }).find("4294967295") != std::string::npos);
  CHECK(why([](auto& h) { h.bulk_bytes = kBulkBytesMax + 1; }).find("bulk") != std::string::npos);
  CHECK(why([](auto& h) { h.bulk_bytes = ~0ull; }).find("bulk") != std::string::npos);
  CHECK(why([](auto& h) {
          h = {.kind = uint8_t(FrameKind::acknowledge), .message_words = 1};
        }).find("acknowledgement") != std::string::npos);
  CHECK(why([](auto& h) { h = {.kind = uint8_t(FrameKind::control), .bulk_bytes = 1}; }).find("control") !=
        std::string::npos);
}

TEST_CASE("a fault is final") {
  FrameDecoder decoder(Sender::client);
  std::vector<std::byte> zeros(64);
  feed(decoder, zeros, zeros.size());
  CHECK(decoder.next() == Next::fault);
  std::string first = decoder.fault();
  std::mt19937_64 random(1);
  std::vector<std::byte> good;
  append(good, make_frame(1, 1, 0, random));
  feed(decoder, good, good.size());
  CHECK(decoder.next() == Next::fault);
  decoder.set_fault("another");
  CHECK(decoder.fault() == first);
}

TEST_CASE("leaving a frame before its bulk is consumed is found out") {
  std::mt19937_64 random(1);
  std::vector<std::byte> stream;
  append(stream, make_frame(1, 1, 10, random));
  FrameDecoder decoder(Sender::client);
  feed(decoder, stream, stream.size());
  CHECK(decoder.next() == Next::frame);
  CHECK(decoder.next() == Next::fault);
}

TEST_CASE("behind a frame with much bulk the next reads are short, so that the next bulk is hardly copied twice") {
  std::mt19937_64 random(1);
  FrameDecoder decoder(Sender::client);
  const size_t usual = decoder.space().size();
  REQUIRE(usual > 4 * kShortSpaceBytes);
  uint64_t sequence = 0;
  // Puts one frame in and takes it out; returns the size of the space for it.
  auto pass = [&](size_t bulk) {
    std::vector<std::byte> stream;
    append(stream, make_frame(++sequence, 2, bulk, random));
    const size_t space = decoder.space().size();
    CHECK(decoder.space().size() == space);  // a read that brought nothing changes nothing
    const size_t fed = feed(decoder, stream, stream.size());
    REQUIRE(decoder.next() == Next::frame);
    decoder.take_bulk(decoder.buffered_bulk().size());
    decoder.bulk_read_elsewhere(stream.size() - fed);
    REQUIRE(decoder.bulk_left() == 0);
    REQUIRE(decoder.next() == Next::need_more);
    return space;
  };
  CHECK(pass(kDirectBulkBytesMin - 1) == usual);
  CHECK(pass(kDirectBulkBytesMin) == usual);
  for (unsigned i = 0; i < 2 * kShortSpaces; ++i) CHECK(pass(kDirectBulkBytesMin) == kShortSpaceBytes);
  for (unsigned i = 0; i < kShortSpaces; ++i) CHECK(pass(0) == kShortSpaceBytes);
  CHECK(pass(0) == usual);
}
