// Measures the cost of TLS on this machine: 64-byte round trips, bandwidth, and the processor time of both ends for a
// GiB, on one loopback connection, bare and inside TLS with the cipher of sessions, both through the transports that
// sessions use. Prints one JSON object.
#include <poll.h>
#include <time.h>

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

// Of the calling thread.
double processor_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

struct Bulk {
  double gb_s;
  double sender_s_per_gib, receiver_s_per_gib;  // of a processor
};

Bulk bulk(Ends& ends) {
  std::vector<std::byte> sent(kPiece, std::byte{1}), received(kPiece);
  double receiver_s = 0;
  auto start = Clock::now();
  std::thread peer([&] {
    for (size_t left = kTotal; left; left -= kPiece) move_all(*ends.second, received, false);
    receiver_s = processor_s();
  });
  double sender_s = -processor_s();
  for (size_t left = kTotal; left; left -= kPiece) move_all(*ends.first, sent, true);
  sender_s += processor_s();
  peer.join();
  constexpr double kGib = double(size_t(1) << 30);
  return {kTotal / 1e9 / std::chrono::duration<double>(Clock::now() - start).count(), sender_s / (kTotal / kGib),
          receiver_s / (kTotal / kGib)};
}

void print(const char* name, Ends ends) {
  double us = round_trip_us(ends);
  Bulk of_bulk = bulk(ends);
  std::printf(
      "\"%s\": {\"round_trip_us\": %.2f, \"bandwidth_gb_s\": %.2f, \"sender_s_per_gib\": %.3f, "
      "\"receiver_s_per_gib\": %.3f}",
      name, us, of_bulk.gb_s, of_bulk.sender_s_per_gib, of_bulk.receiver_s_per_gib);
}

}  // namespace

int main() {
  std::printf("{");
  print("plain", bare());
  std::printf(", ");
  print("tls", encrypted());
  std::printf("}\n");
  return 0;
}
