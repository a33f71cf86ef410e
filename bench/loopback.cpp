// Measures the raw loopback, as a reference for remote figures: 64-byte round trips (sleeping and busy polling) and
// bandwidth on one TCP stream, with plain sockets. Prints one JSON object. --quick: a short run of everything, to try
// the program.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kPiece = 1 << 20;

struct Amounts {
  unsigned round_trips = 4000;
  size_t bytes = size_t(2) << 30;
} g_amounts;  // set before any thread is made

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

bool transfer(int socket, char* data, size_t bytes, bool sending, bool polling) {
  while (bytes) {
    int flags = MSG_NOSIGNAL | (polling ? MSG_DONTWAIT : 0);
    ssize_t done = sending ? send(socket, data, bytes, flags) : recv(socket, data, bytes, flags);
    if (done < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (done <= 0) return false;
    data += done;
    bytes -= size_t(done);
  }
  return true;
}

void echo(int socket, bool polling) {
  char message[64];
  for (unsigned i = 0; i < g_amounts.round_trips; ++i)
    if (!transfer(socket, message, sizeof message, false, polling) ||
        !transfer(socket, message, sizeof message, true, false))
      return;
}

double round_trip_us(int near, int far, bool polling) {
  std::thread peer(echo, far, polling);
  std::vector<double> times;
  char message[64] = {};
  for (unsigned i = 0; i < g_amounts.round_trips; ++i) {
    auto start = Clock::now();
    if (!transfer(near, message, sizeof message, true, false) ||
        !transfer(near, message, sizeof message, false, polling))
      fail("round trip");
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  peer.join();
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double bandwidth_gb_s(int near, int far) {
  std::thread peer([far] {
    std::vector<char> buffer(kPiece);
    for (size_t left = g_amounts.bytes; left; left -= kPiece)
      if (!transfer(far, buffer.data(), kPiece, false, false)) return;
  });
  std::vector<char> buffer(kPiece, 1);
  auto start = Clock::now();
  for (size_t left = g_amounts.bytes; left; left -= kPiece)
    if (!transfer(near, buffer.data(), kPiece, true, false)) fail("send");
  peer.join();
  return double(g_amounts.bytes) / 1e9 / std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--quick") g_amounts = {.round_trips = 100, .bytes = 16 * kPiece};
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), length) || listen(listener, 1) ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length))
    fail("listen");
  int near = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(near, reinterpret_cast<sockaddr*>(&address), length)) fail("connect");
  int far = accept(listener, nullptr, nullptr);
  int one = 1;
  for (int end : {near, far}) setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);

  double sleeping = round_trip_us(near, far, false);
  double polling = round_trip_us(near, far, true);
  double rate = bandwidth_gb_s(near, far);
  std::printf("{\"round_trip_us\": %.2f, \"round_trip_polling_us\": %.2f, \"bandwidth_gb_s\": %.2f}\n", sleeping,
              polling, rate);
  return 0;
}
