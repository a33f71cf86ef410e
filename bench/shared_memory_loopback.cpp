// Measures the transports to a server on the same machine, between two processes: 64-byte round trips while both sides
// poll and while both sleep for every message, and bandwidth. For comparison it measures a round trip with two plain
// futexes, the cost of a doorbell that cannot report the other process's end. Prints one JSON object. --quick: a short
// run of everything, to try the program.
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/threads/polling.hpp"
#include "protocol/transport/shared_memory.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/transport/tcp.hpp"
#include "protocol/transport/unix.hpp"

namespace {

using namespace gpuwire;
using Clock = std::chrono::steady_clock;
using transport::IoStatus;
using transport::Transport;
constexpr size_t kMessageBytes = 64;
constexpr size_t kPiece = 16 << 20;
constexpr std::chrono::seconds kLimit{60};

struct Amounts {
  unsigned round_trips = 20'000;
  size_t bytes = size_t(2) << 30;
} g_amounts;  // set before any process is made

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "shared_memory_loopback: %s\n", what.c_str());
  _exit(1);
}

void send(Transport& end, std::span<std::byte> memory) {
  iovec piece{memory.data(), memory.size()};
  if (auto result = send_all(end, {&piece, 1}, kLimit); result.status != IoStatus::ok) fail(describe(result));
}

void receive(Transport& end, std::span<std::byte> memory, bool polled) {
  for (size_t got = 0; got < memory.size();) {
    auto result =
        memory.size() > kMessageBytes ? end.receive_bulk(memory.subspan(got)) : end.try_receive(memory.subspan(got));
    if (result.status == IoStatus::ok) got += result.bytes;
    else if (result.status != IoStatus::would_block) fail(describe(result));
    else if (polled) relax();
    else end.wait(transport::kReadable, kLimit);
  }
}

// Runs `far` in a separate process.
double with_peer(const std::function<void()>& far, const std::function<double()>& near) {
  pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    far();
    _exit(0);
  }
  double value = near();
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) fail("the other process failed");
  return value;
}

// Each process makes its end from the result of `open`; true: the near end.
using Open = std::function<std::unique_ptr<Transport>(bool near)>;

double median_us(unsigned round_trips, const std::function<void()>& once) {
  std::vector<double> times;
  for (unsigned i = 0; i < round_trips; ++i) {
    auto start = Clock::now();
    once();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double round_trip_us(const Open& open, bool polled) {
  return with_peer(
      [&] {
        auto end = open(false);
        std::vector<std::byte> message(kMessageBytes);
        for (unsigned i = 0; i < g_amounts.round_trips; ++i) {
          receive(*end, message, polled);
          send(*end, message);
        }
        receive(*end, std::span(message).first(1), false);
      },
      [&] {
        auto end = open(true);
        std::vector<std::byte> message(kMessageBytes);
        double value = median_us(g_amounts.round_trips, [&] {
          send(*end, message);
          receive(*end, message, polled);
        });
        send(*end, std::span(message).first(1));
        return value;
      });
}

double bandwidth_gb_s(const Open& open) {
  return with_peer(
      [&] {
        auto end = open(false);
        std::vector<std::byte> memory(kPiece, std::byte{1});
        for (size_t left = g_amounts.bytes; left; left -= kPiece) receive(*end, memory, false);
        send(*end, std::span(memory).first(1));
      },
      [&] {
        auto end = open(true);
        std::vector<std::byte> memory(kPiece, std::byte{1});
        auto start = Clock::now();
        for (size_t left = g_amounts.bytes; left; left -= kPiece) send(*end, memory);
        receive(*end, std::span(memory).first(1), false);
        return double(g_amounts.bytes) / 1e9 / std::chrono::duration<double>(Clock::now() - start).count();
      });
}

struct Pair {
  int ends[2] = {-1, -1};
  int of(bool near) const { return fcntl(ends[near ? 0 : 1], F_DUPFD_CLOEXEC, 0); }
};

Pair tcp_pair() {
  auto listener = transport::TcpListener::listen({"127.0.0.1", 0});
  if (!listener) fail(listener.error());
  auto near = transport::connect_tcp((*listener)->endpoint(), kLimit);
  if (!near) fail(near.error());
  pollfd ready{(*listener)->descriptor(), POLLIN, 0};
  poll(&ready, 1, 10'000);
  return {{fcntl((*near)->descriptor(), F_DUPFD_CLOEXEC, 0), (*listener)->accept().descriptor}};
}

Pair local_pair() {
  Pair pair;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.ends) != 0) fail("socketpair");
  return pair;
}

Open stream(const Pair& pair) {
  return [pair](bool near) { return transport::adopt_stream(pair.of(near)); };
}

Open shared(const Pair& pair, const transport::SharedMemoryFile& file) {
  return [pair, descriptor = file.descriptor()](bool near) {
    auto own = transport::SharedMemoryFile::open(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    if (!own) fail(own.error());
    return transport::adopt_shared_memory(
        std::move(*own), pair.of(near),
        near ? transport::SharedMemorySide::client : transport::SharedMemorySide::server);
  };
}

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

double futex_round_trip_us() {
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* words = static_cast<std::atomic<uint32_t>*>(memory);
  std::atomic<uint32_t>&there = words[0], &back = words[64];
  auto await = [](std::atomic<uint32_t>& word, uint32_t value) {
    while (word.load() != value) futex(word, FUTEX_WAIT, value - 1);
  };
  auto tell = [](std::atomic<uint32_t>& word, uint32_t value) {
    word.store(value);
    futex(word, FUTEX_WAKE, 1);
  };
  return with_peer(
      [&] {
        for (uint32_t i = 1; i <= g_amounts.round_trips; ++i) {
          await(there, i);
          tell(back, i);
        }
      },
      [&] {
        uint32_t i = 0;
        return median_us(g_amounts.round_trips, [&] {
          tell(there, ++i);
          await(back, i);
        });
      });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--quick") g_amounts = {.round_trips = 100, .bytes = 2 * kPiece};
  auto figures = [](const char* name, const auto& open) {
    double asleep = round_trip_us(open(), false), polled = round_trip_us(open(), true), rate = bandwidth_gb_s(open());
    std::printf("\"%s\": {\"round_trip_asleep_us\": %.2f, \"round_trip_polled_us\": %.2f, \"bandwidth_gb_s\": %.2f}, ",
                name, asleep, polled, rate);
  };
  std::printf("{");
  figures("tcp", [] { return stream(tcp_pair()); });
  figures("unix", [] { return stream(local_pair()); });
  for (uint32_t ring_kib : {256u, 1024u, 4096u, 16384u}) {
    std::vector<transport::SharedMemoryFile> files;
    auto open = [&] {
      auto file = transport::SharedMemoryFile::create(ring_kib << 10);
      if (!file) fail(file.error());
      files.push_back(std::move(*file));
      return shared(local_pair(), files.back());
    };
    figures(("shared_memory_" + std::to_string(ring_kib) + "k").c_str(), open);
  }
  std::printf("\"futex_round_trip_us\": %.2f}\n", futex_round_trip_us());
  return 0;
}
