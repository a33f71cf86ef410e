#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "protocol/transport/simulated.hpp"

using namespace gpuwire::transport;

namespace {

// Sends 5000 bytes and notes how they came out: the sizes of the pieces, and a 0 for each look that found nothing.
std::vector<size_t> trace(uint64_t seed) {
  auto [a, b] = simulated_pair({.seed = seed, .piece_bytes_max = 100, .delay_polls_max = 4});
  std::vector<std::byte> bytes(5000), out(5000);
  std::vector<size_t> pieces;
  size_t sent = 0, got = 0;
  while (got < bytes.size()) {
    iovec piece{bytes.data() + sent, bytes.size() - sent};
    if (sent < bytes.size()) sent += a->try_send({&piece, 1}).bytes;
    auto result = b->try_receive(out);
    pieces.push_back(result.bytes);
    got += result.bytes;
  }
  return pieces;
}

}  // namespace

TEST_CASE("one seed is one course of events, and another seed another") {
  CHECK(trace(7) == trace(7));
  CHECK(trace(7) != trace(8));
  auto pieces = trace(7);
  CHECK(std::count(pieces.begin(), pieces.end(), 0u) > 0);
  CHECK(*std::max_element(pieces.begin(), pieces.end()) <= 100);
}

TEST_CASE("a cut lets exactly the bytes before it through, and then both sides fail") {
  auto [a, b] = simulated_pair({.seed = 3, .cut_first_to_second = 1234});
  std::vector<std::byte> bytes(5000), out(5000);
  iovec piece{bytes.data(), bytes.size()};
  CHECK(a->try_send({&piece, 1}).bytes == 5000);
  size_t got = 0;
  for (;;) {
    auto result = b->try_receive(out);
    if (result.status != IoStatus::ok) {
      CHECK(result.status == IoStatus::failed);
      break;
    }
    got += result.bytes;
  }
  CHECK(got == 1234);
  CHECK(a->try_send({&piece, 1}).status == IoStatus::failed);
  CHECK(a->try_receive(out).status == IoStatus::failed);
  CHECK((a->wait(kReadable, std::chrono::nanoseconds(0)) & kReadable));
}

TEST_CASE("delayed bytes are there as soon as somebody waits for them") {
  auto [a, b] = simulated_pair({.seed = 3, .delay_polls_max = 1000});
  std::byte byte{1};
  iovec piece{&byte, 1};
  CHECK(a->try_send({&piece, 1}).bytes == 1);
  CHECK(b->wait(kReadable, std::chrono::hours(1)) == kReadable);
  std::byte out[1];
  CHECK(b->try_receive(out).bytes == 1);
}
