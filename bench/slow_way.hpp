// A relay to a server on loopback with a delay and a limited rate: it accepts TCP connections and forwards each byte
// after half a round trip, within the rate of the link, which all connections of a direction share.
//
// With enough cores, a thread polls for bytes while there is traffic, so that the relay adds only a few microseconds.
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

namespace gpuwire::bench {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

inline constexpr size_t kPieceBytesMax = 256u << 10;
// The buffer of a router, in addition to the bytes in transit.
inline constexpr double kQueueSeconds = 0.002;
inline constexpr size_t kQueueBytesMin = 4u << 20;
inline constexpr double kUnlimitedBytesPerSecond = 25e9;  // for the size of the buffers only
inline constexpr size_t kBufferBytesMax = size_t(2) << 30;
inline constexpr unsigned kSpinCoresMin = 8;
inline constexpr nanoseconds kSpin{100'000};     // without bytes, before the thread sleeps
inline constexpr nanoseconds kDueSpin{150'000};  // for bytes that are due within this time the thread polls
inline constexpr nanoseconds kLongSleep{1'000'000'000};

[[noreturn]] inline void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

struct Way {
  double round_trip_ms = 0;
  // Per second, of each direction; 0: as fast as the machine.
  double gbit = 0;
  nanoseconds delay() const { return nanoseconds(int64_t(round_trip_ms * 1e6 / 2)); }
  double bytes_per_second() const { return gbit > 0 ? gbit * 1e9 / 8 : kUnlimitedBytesPerSecond; }
  size_t buffer_bytes() const {
    double on_the_way = bytes_per_second() * (round_trip_ms / 2e3 + kQueueSeconds);
    return std::clamp(size_t(on_the_way), kQueueBytesMin, kBufferBytesMax);
  }
};

// Computes when the bytes of one direction may leave: the link carries the pieces of all connections one after the
// other.
class Link {
 public:
  explicit Link(const Way& way) : way_(way) {}
  Clock::time_point due(size_t bytes, Clock::time_point now) {
    if (way_.gbit <= 0) return now + way_.delay();
    std::lock_guard lock(mutex_);
    free_ = std::max(free_, now) + nanoseconds(int64_t(double(bytes) / way_.bytes_per_second() * 1e9));
    return free_ + way_.delay();
  }

 private:
  const Way& way_;
  std::mutex mutex_;
  Clock::time_point free_{};
};

// One direction of one connection; one thread. A ring stores the bytes from their arrival until they are sent.
class Direction {
 public:
  Direction(const Way& way, Link& link, int from, int to)
      : link_(link), from_(from), to_(to), bytes_(way.buffer_bytes()), spins_(std::thread::hardware_concurrency()) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    ring_ = static_cast<char*>(memory);
  }
  Direction(const Direction&) = delete;
  Direction& operator=(const Direction&) = delete;
  ~Direction() { munmap(ring_, bytes_); }

  void run() {
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    Clock::time_point active = Clock::now();
    while (!broken_ && !(ended_ && sent_ == received_)) {
      bool took = take(), gave = give();
      if (took || gave) active = Clock::now();
      else rest(active);
    }
    ::shutdown(to_, SHUT_WR);
    if (broken_) ::shutdown(from_, SHUT_RD);
  }

 private:
  struct Piece {
    uint64_t end;
    Clock::time_point due;
  };

  size_t room() const { return bytes_ - size_t(received_ - sent_); }

  bool take() {
    if (ended_ || room() == 0) return false;
    const size_t at = size_t(received_ % bytes_);
    const size_t most = std::min({room(), bytes_ - at, kPieceBytesMax});
    ssize_t got = ::recv(from_, ring_ + at, most, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got < 0) broken_ = true;
    if (got <= 0) {
      ended_ = true;
      return true;
    }
    received_ += uint64_t(got);
    pieces_.push_back({received_, link_.due(size_t(got), Clock::now())});
    return true;
  }

  bool give() {
    blocked_ = false;
    const Clock::time_point now = Clock::now();
    while (!pieces_.empty() && pieces_.front().due <= now) {
      if (pieces_.front().end > due_) due_ = pieces_.front().end;
      pieces_.pop_front();
    }
    bool gave = false;
    while (sent_ < due_) {
      const size_t at = size_t(sent_ % bytes_);
      const size_t most = std::min(size_t(due_ - sent_), bytes_ - at);
      ssize_t put = ::send(to_, ring_ + at, std::min(most, kPieceBytesMax), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (put < 0 && (errno == EAGAIN || errno == EINTR)) {
        blocked_ = true;
        return gave;
      }
      if (put < 0) {
        broken_ = true;
        return gave;
      }
      sent_ += uint64_t(put);
      gave = true;
    }
    return gave;
  }

  void rest(Clock::time_point active) {
    const Clock::time_point now = Clock::now();
    nanoseconds sleep = kLongSleep;
    if (!pieces_.empty()) sleep = std::min(sleep, std::max(nanoseconds{}, nanoseconds(pieces_.front().due - now)));
    if (spins_ >= kSpinCoresMin && (now - active < kSpin || sleep < kDueSpin)) return;
    pollfd looks[2] = {{from_, short(ended_ || room() == 0 ? 0 : POLLIN), 0}, {to_, short(blocked_ ? POLLOUT : 0), 0}};
    // A known end of the stream, or a full ring, must not wake the thread again and again.
    if (looks[0].events == 0) looks[0].fd = -1;
    if (looks[1].events == 0) looks[1].fd = -1;
    timespec limit{time_t(sleep.count() / 1'000'000'000), long(sleep.count() % 1'000'000'000)};
    ::ppoll(looks, 2, &limit, nullptr);
  }

  Link& link_;
  const int from_, to_;
  const size_t bytes_;
  const unsigned spins_;
  char* ring_ = nullptr;
  std::deque<Piece> pieces_;
  uint64_t received_ = 0, due_ = 0, sent_ = 0;
  bool ended_ = false, broken_ = false, blocked_ = false;
};

inline void set_no_delay(int socket) {
  int one = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

inline uint16_t port_of(int socket, bool peer) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  auto* out = reinterpret_cast<sockaddr*>(&address);
  if ((peer ? ::getpeername(socket, out, &length) : ::getsockname(socket, out, &length)) != 0) return 0;
  return ntohs(address.sin_port);
}

inline int connect_to(const sockaddr_in& address) {
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) fail("socket");
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(socket);
    return -1;
  }
  set_no_delay(socket);
  return socket;
}

inline int listen_on_loopback() {
  int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (listener < 0 || ::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener, 128) != 0)
    fail("listen");
  return listener;
}

// Runs both directions until both have ended.
class Connection {
 public:
  Connection(const Way& way, Link& up, Link& down, int client, int server)
      : client_(client), server_(server), up_(way, up, client, server), down_(way, down, server, client) {
    there_ = std::thread([this] { up_.run(); });
    back_ = std::thread([this] {
      down_.run();
      there_.join();
      ::close(client_);
      ::close(server_);
      over_.store(true, std::memory_order_release);
    });
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { back_.join(); }
  // No thread of it runs any more; partner: the thread that stores it last.
  bool over() const { return over_.load(std::memory_order_acquire); }

 private:
  int client_, server_;
  Direction up_, down_;
  std::thread there_, back_;
  std::atomic<bool> over_{false};
};

class Proxy {
 public:
  Proxy(const Way& way, const sockaddr_in& server)
      : way_(way), server_(server), listener_(listen_on_loopback()), up_(way), down_(way) {}
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  ~Proxy() { ::close(listener_); }
  uint16_t port() const { return port_of(listener_, false); }

  // Runs until stop(), which any thread may call.
  void run() {
    for (;;) {
      int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
      // Stopped.
      if (client < 0) return;
      connections_.remove_if([](const auto& connection) { return connection->over(); });
      set_no_delay(client);
      int server = connect_to(server_);
      // With the client's own port number a server would consider this connection the client's.
      for (int refused = server; server >= 0 && port_of(server, false) == port_of(client, true); refused = server) {
        server = connect_to(server_);
        ::close(refused);
      }
      if (server < 0) {
        ::close(client);
        continue;
      }
      connections_.push_back(std::make_unique<Connection>(way_, up_, down_, client, server));
    }
  }
  void stop() { ::shutdown(listener_, SHUT_RDWR); }

 private:
  const Way way_;
  const sockaddr_in server_;
  int listener_;
  Link up_, down_;
  std::list<std::unique_ptr<Connection>> connections_;
};

inline sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

}  // namespace gpuwire::bench
