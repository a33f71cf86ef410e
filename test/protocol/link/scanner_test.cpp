#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "protocol/link/acknowledgements.hpp"
#include "protocol/link/incoming_parts.hpp"
#include "test/protocol/transport/pairs.hpp"

using namespace gpuwire;

namespace {

void add_frame(std::vector<std::byte>& stream, wire::FrameHeader header) {
  auto bytes = std::as_bytes(std::span(&header, 1));
  stream.insert(stream.end(), bytes.begin(), bytes.end());
  // What looks like an acknowledgement inside a message or bulk is none.
  wire::FrameHeader decoy{.kind = uint8_t(wire::FrameKind::acknowledge), .sequence = 666};
  std::vector<std::byte> rest(header.message_words * 8 + header.bulk_bytes);
  if (rest.size() >= sizeof decoy) std::memcpy(rest.data(), &decoy, sizeof decoy);
  stream.insert(stream.end(), rest.begin(), rest.end());
}

}  // namespace

TEST_CASE("acknowledgements are found however the stream is cut, and nowhere else") {
  for (uint64_t seed = test::test_seed(); seed < test::test_seed() + 30; ++seed) {
    INFO("seed ", seed);
    std::mt19937_64 random(seed);
    std::vector<std::byte> stream;
    std::vector<uint64_t> expected, found;
    for (uint64_t i = 0; i < 300; ++i) {
      if (random() % 3 == 0) {
        expected.push_back(i);
        add_frame(stream, {.kind = uint8_t(wire::FrameKind::acknowledge), .sequence = i});
      } else {
        add_frame(stream, {.kind = uint8_t(wire::FrameKind::posted),
                           .sequence = i,
                           .message_words = uint32_t(random() % 20),
                           .bulk_bytes = random() % 3 ? 0 : random() % 500});
      }
    }
    link::AcknowledgementScanner scanner;
    for (size_t at = 0; at < stream.size();) {
      size_t piece = std::min<size_t>(stream.size() - at, 1 + random() % (random() % 2 ? 8 : 700));
      scanner.scan(std::span(stream).subspan(at, piece), [&](uint64_t position) { found.push_back(position); });
      at += piece;
    }
    CHECK(found == expected);
  }
}

TEST_CASE("behind what is no frame nothing is found") {
  std::vector<std::byte> stream;
  wire::FrameHeader absurd{.kind = uint8_t(wire::FrameKind::posted), .bulk_bytes = ~0ull};
  auto bytes = std::as_bytes(std::span(&absurd, 1));
  stream.insert(stream.end(), bytes.begin(), bytes.end());
  add_frame(stream, {.kind = uint8_t(wire::FrameKind::acknowledge), .sequence = 5});
  unsigned found = 0;
  link::AcknowledgementScanner().scan(stream, [&](uint64_t) { ++found; });
  CHECK(found == 0);
}

TEST_CASE("bulk that travels with its frame is received in one read, bytes behind it only up to the usual size") {
  link::AcknowledgementScanner scanner;
  link::IncomingParts parts(scanner);
  constexpr size_t kMedium = 250 << 10;
  REQUIRE(parts.begin(kMedium));
  std::vector<std::byte> out(kMedium);
  auto receive = [&](wire::FrameHeader header) {
    std::memcpy(parts.room(out).data(), &header, sizeof header);
    return parts.take(std::span(out).first(sizeof header), [](uint64_t) {});
  };
  CHECK(parts.room(out).size() == link::IncomingParts::kPollBytes);
  const wire::FrameHeader frame{.kind = uint8_t(wire::FrameKind::posted), .sequence = 1, .bulk_bytes = kMedium};
  CHECK(receive(frame) == sizeof frame);
  CHECK(parts.room(out).size() == kMedium);
  CHECK(parts.take(out, [](uint64_t) {}) == kMedium);
  CHECK(parts.room(out).size() == link::IncomingParts::kPollBytes);
}
