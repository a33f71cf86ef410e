// What TLS costs on this machine: 64-byte round trips and bandwidth on one loopback connection, bare and inside TLS
// with the cipher of sessions, both through the transports that sessions use. Prints one JSON object.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "bench/loopback_ends.hpp"
#include "protocol/tls/transport.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/transport/tcp.hpp"

namespace {

using namespace gpuwire;
using namespace gpuwire::bench;
using Clock = std::chrono::steady_clock;
constexpr int kRoundTrips = 4000;
constexpr size_t kMessageBytes = 64;
constexpr size_t kPiece = 64 << 20;
constexpr size_t kTotal = size_t(1) << 30;

void move_all(transport::Transport& end, std::vector<std::byte>& memory, bool sending) {
  iovec piece{memory.data(), memory.size()};
  auto result = sending ? send_all(end, {&piece, 1}, kLimit) : receive_all(end, memory, kLimit);
  if (result.status != transport::IoStatus::ok) fail(describe(result));
}

double round_trip_us(Ends& ends) {
  std::thread peer([&] {
    std::vector<std::byte> message(kMessageBytes);
    for (int i = 0; i < kRoundTrips; ++i) {
      move_all(*ends.second, message, false);
      move_all(*ends.second, message, true);
    }
  });
  std::vector<std::byte> message(kMessageBytes);
  std::vector<double> times;
  for (int i = 0; i < kRoundTrips; ++i) {
    auto start = Clock::now();
    move_all(*ends.first, message, true);
    move_all(*ends.first, message, false);
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  peer.join();
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double bandwidth_gb_s(Ends& ends) {
  std::vector<std::byte> sent(kPiece, std::byte{1}), received(kPiece);
  auto start = Clock::now();
  std::thread peer([&] {
    for (size_t left = kTotal; left; left -= kPiece) move_all(*ends.second, received, false);
  });
  for (size_t left = kTotal; left; left -= kPiece) move_all(*ends.first, sent, true);
  peer.join();
  return kTotal / 1e9 / std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

int main() {
  Ends plain = bare(), tls = encrypted();
  std::printf(
      "{\"plain\": {\"round_trip_us\": %.2f, \"bandwidth_gb_s\": %.2f}, \"tls\": {\"round_trip_us\": %.2f, "
      "\"bandwidth_gb_s\": %.2f}}\n",
      round_trip_us(plain), bandwidth_gb_s(plain), round_trip_us(tls), bandwidth_gb_s(tls));
  return 0;
}
