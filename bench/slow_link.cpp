// A relay to a server with a given delay and rate (slow_way.hpp). With --measure it measures itself: round trips and
// bandwidth of plain sockets over the relay, as one JSON object.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "bench/slow_way.hpp"
#include "command_line/command_line.hpp"

using namespace gpuwire::bench;

namespace {

// --- measuring -------------------------------------------------------------------------------------------------------

constexpr int kRoundTripsMin = 5, kRoundTripsMax = 2000;
constexpr double kRoundTripSeconds = 0.3;
constexpr double kBandwidthSeconds = 0.4;
constexpr size_t kMeasuredPiece = 1u << 20;

bool transfer(int socket, char* data, size_t bytes, bool sending) {
  while (bytes) {
    ssize_t done = sending ? ::send(socket, data, bytes, MSG_NOSIGNAL) : ::recv(socket, data, bytes, 0);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    data += done;
    bytes -= size_t(done);
  }
  return true;
}

// The server behind the relay during a measurement: it sends each byte of the first kind of connection back, and counts
// the bytes of the second kind, which begins with another byte.
class Echo {
 public:
  Echo() : listener_(listen_on_loopback()), accepting_([this] { accept(); }) {}
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;
  ~Echo() {
    ::shutdown(listener_, SHUT_RDWR);
    accepting_.join();
    for (auto& peer : peers_) peer.join();
    ::close(listener_);
  }
  uint16_t port() const { return port_of(listener_, false); }
  uint64_t counted() const { return counted_.load(std::memory_order_relaxed); }

 private:
  void accept() {
    for (;;) {
      int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (socket < 0) return;
      set_no_delay(socket);
      peers_.emplace_back([this, socket] { serve(socket); });
    }
  }
  void serve(int socket) {
    std::vector<char> buffer(kMeasuredPiece);
    char kind = 0;
    if (transfer(socket, &kind, 1, false)) {
      for (;;) {
        ssize_t got = ::recv(socket, buffer.data(), buffer.size(), 0);
        if (got <= 0) break;
        if (kind == 'e' && !transfer(socket, buffer.data(), size_t(got), true)) break;
        if (kind == 'c') counted_.fetch_add(uint64_t(got), std::memory_order_relaxed);
      }
    }
    ::close(socket);
  }

  int listener_;
  std::atomic<uint64_t> counted_{0};  // stands for itself
  std::vector<std::thread> peers_;    // accept()'s until it has been joined
  std::thread accepting_;
};

int open_way(uint16_t port, char kind) {
  int socket = connect_to(loopback(port));
  if (socket < 0 || !transfer(socket, &kind, 1, true)) fail("connect");
  return socket;
}

double round_trip_us(uint16_t port) {
  int socket = open_way(port, 'e');
  std::vector<double> times;
  double spent = 0;
  char message[64] = {};
  while (int(times.size()) < kRoundTripsMin || (spent < kRoundTripSeconds && int(times.size()) < kRoundTripsMax)) {
    auto start = Clock::now();
    if (!transfer(socket, message, sizeof message, true) || !transfer(socket, message, sizeof message, false))
      fail("round trip");
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    spent += times.back();
  }
  ::close(socket);
  std::sort(times.begin(), times.end());
  return 1e6 * times[times.size() / 2];
}

double bandwidth_gb_s(uint16_t port, const Echo& echo, unsigned streams, double round_trip_seconds) {
  std::atomic<bool> stopping{false};  // the senders read it; it publishes nothing
  std::vector<int> sockets;
  for (unsigned i = 0; i < streams; ++i) sockets.push_back(open_way(port, 'c'));
  std::vector<std::thread> senders;
  for (int socket : sockets) {
    senders.emplace_back([socket, &stopping] {
      std::vector<char> piece(kMeasuredPiece, 1);
      while (!stopping.load(std::memory_order_relaxed) && transfer(socket, piece.data(), piece.size(), true)) {}
    });
  }
  // A stream needs some round trips to reach its speed.
  auto pause = [](double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); };
  pause(kBandwidthSeconds / 2 + 10 * round_trip_seconds);
  uint64_t before = echo.counted();
  auto start = Clock::now();
  pause(kBandwidthSeconds);
  double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  double rate = double(echo.counted() - before) / 1e9 / seconds;
  stopping.store(true, std::memory_order_relaxed);
  for (int socket : sockets) ::shutdown(socket, SHUT_RDWR);
  for (auto& sender : senders) sender.join();
  for (int socket : sockets) ::close(socket);
  return rate;
}

void measure(const Way& way) {
  Echo echo;
  Proxy proxy(way, loopback(echo.port()));
  std::thread accepting([&] { proxy.run(); });
  double round_trip = round_trip_us(proxy.port());
  double one = bandwidth_gb_s(proxy.port(), echo, 1, round_trip / 1e6);
  double four = bandwidth_gb_s(proxy.port(), echo, 4, round_trip / 1e6);
  std::printf("{\"round_trip_us\": %.1f, \"gb_s_1_stream\": %.3f, \"gb_s_4_streams\": %.3f}\n", round_trip, one, four);
  proxy.stop();
  accepting.join();
}

}  // namespace

int main(int argc, char** argv) {
  Way way;
  std::string server;
  bool measures = false;
  gpuwire::CommandLine app{
      "Hands TCP connections on to a server as a longer and narrower link would, on loopback. Prints the "
      "address it listens on, and runs until it is killed.",
      "slow_link"};
  app.add_option("--round-trip-ms", way.round_trip_ms, "What the way adds to a round trip").between(0.0, 10000.0);
  app.add_option("--gbit", way.gbit, "Gbit/s each way, over all connections together; 0: no limit")
      .between(0.0, 1000.0);
  gpuwire::Option to = app.add_option("--server", server, "Where the connections lead").type_name("HOST:PORT (IPv4)");
  app.add_flag("--measure", measures, "Measure plain sockets over such a way, print JSON and end").excludes(to);
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (measures) {
    measure(way);
    return 0;
  }
  size_t colon = server.rfind(':');
  sockaddr_in address = loopback(0);
  if (colon == std::string::npos || inet_pton(AF_INET, server.substr(0, colon).c_str(), &address.sin_addr) != 1) {
    std::fprintf(stderr, "slow_link: --server must be an IPv4 address and a port, as 127.0.0.1:9750\n");
    return 2;
  }
  address.sin_port = htons(uint16_t(std::atoi(server.c_str() + colon + 1)));
  Proxy proxy(way, address);
  std::printf("listening on 127.0.0.1:%u\n", unsigned(proxy.port()));
  std::fflush(stdout);
  proxy.run();
  return 1;
}
