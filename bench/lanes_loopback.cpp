// Measures the gain of further connections on this machine: bandwidth over 1 to N loopback streams with plain sockets,
// with and without MSG_ZEROCOPY, by io_uring with and without it, by sizes of socket buffers, and of one session's link
// with as many lanes, bare and inside TLS, where bulk is read in pieces as a worker reads it. Plain sockets are
// measured with 1 MiB at each end, which stays in a core's cache, and with the memory of a large copy. Prints one JSON
// object.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/loopback_ends.hpp"
#include "bench/uring.hpp"
#include "protocol/link/link.hpp"
#include "protocol/tls/transport.hpp"
#include "protocol/transport/frame_receiver.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/transport/tcp.hpp"

namespace {

using namespace gpuwire;
using namespace gpuwire::bench;
using Clock = std::chrono::steady_clock;
constexpr size_t kPieceBytes = 1 << 20;
constexpr size_t kCopyBytes = 64 << 20;  // the memory of a copy, of all streams together
constexpr size_t kBulkBytes = 16 << 20,
                 kReadBytes = 8 << 20;  // a client cuts large copies into the first, a worker reads the second
constexpr size_t kFrames = 128;
constexpr size_t kStreamBytes = kBulkBytes * kFrames;

double rate(Clock::time_point begun) {
  return double(kStreamBytes) / 1e9 / std::chrono::duration<double>(Clock::now() - begun).count();
}

// --- plain sockets -------------------------------------------------------------------------------------------------

void set_blocking(int socket) { fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) & ~O_NONBLOCK); }

// The kernel reports on the error queue when it has released pages.
void take_notices(int socket) {
  char control[256];
  msghdr message{};
  do {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  } while (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0);
}

enum class Way : uint8_t { plain, zero_copy, uring, uring_zero_copy };

void send_by_calls(int socket, size_t bytes, std::vector<char>& memory, bool zero_copy) {
  size_t at = 0;
  int one = 1;
  if (zero_copy && setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) != 0) fail("no SO_ZEROCOPY");
  while (bytes != 0) {
    ssize_t sent = send(socket, memory.data() + at, std::min({bytes, kPieceBytes, memory.size() - at}),
                        MSG_NOSIGNAL | (zero_copy ? MSG_ZEROCOPY : 0));
    if (zero_copy) take_notices(socket);
    if (sent < 0 && errno == ENOBUFS) continue;  // too much memory is pinned until the notices are read
    if (sent <= 0) fail("send");
    bytes -= size_t(sent);
    at = (at + size_t(sent)) % memory.size();
  }
}

void send_by_uring(int socket, size_t bytes, std::vector<char>& memory, UringSend how) {
  Uring ring(memory);
  size_t at = 0;
  std::vector<iovec> pieces;
  while (bytes != 0) {
    pieces.clear();
    while (bytes != 0 && pieces.size() < Uring::kChain) {
      size_t size = std::min({bytes, kPieceBytes, memory.size() - at});
      pieces.push_back({memory.data() + at, size});
      bytes -= size;
      at = (at + size) % memory.size();
    }
    ring.send(socket, pieces, how);
  }
}

double processor_seconds_of_thread() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  auto seconds = [](const timeval& time) { return double(time.tv_sec) + 1e-6 * double(time.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Sends `memory_bytes` of memory again and again. Returns the processor time of the sender's thread.
double send_stream(int socket, size_t bytes, size_t memory_bytes, Way way) {
  std::vector<char> memory(memory_bytes, 1);
  double before = processor_seconds_of_thread();
  switch (way) {
    case Way::plain: send_by_calls(socket, bytes, memory, false); break;
    case Way::zero_copy: send_by_calls(socket, bytes, memory, true); break;
    case Way::uring: send_by_uring(socket, bytes, memory, UringSend::copied); break;
    case Way::uring_zero_copy: send_by_uring(socket, bytes, memory, UringSend::zero_copy); break;
  }
  return processor_seconds_of_thread() - before;
}

void receive_stream(int socket, size_t bytes, size_t memory_bytes) {
  std::vector<char> memory(memory_bytes);
  size_t at = 0;
  while (bytes != 0) {
    ssize_t got = recv(socket, memory.data() + at, std::min({bytes, kPieceBytes, memory.size() - at}), MSG_WAITALL);
    if (got <= 0) fail("recv");
    bytes -= size_t(got);
    at = (at + size_t(got)) % memory.size();
  }
}

struct Measured {
  double gb_s = 0, sender_s_a_gb = 0;  // processor time of the senders' threads
};

// `buffer_bytes`: 0: the sizes of sessions.
Measured sockets(size_t streams, Way way, int buffer_bytes, size_t memory_bytes = kPieceBytes) {
  std::vector<Ends> ends;
  for (size_t i = 0; i < streams; ++i) {
    ends.push_back(bare());
    // io_uring waits by itself where a descriptor does.
    if (way == Way::uring || way == Way::uring_zero_copy) set_blocking(ends.back().first->descriptor());
    if (!buffer_bytes) continue;
    setsockopt(ends.back().first->descriptor(), SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
    setsockopt(ends.back().second->descriptor(), SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
  }
  std::vector<double> processor_s(streams);
  auto begun = Clock::now();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < streams; ++i) {
    threads.emplace_back([&, i] {
      processor_s[i] = send_stream(ends[i].first->descriptor(), kStreamBytes / streams, memory_bytes, way);
    });
    threads.emplace_back(
        [&, i] { receive_stream(ends[i].second->descriptor(), kStreamBytes / streams, memory_bytes); });
  }
  for (auto& thread : threads) thread.join();
  return {rate(begun), std::accumulate(processor_s.begin(), processor_s.end(), 0.0) / (double(kStreamBytes) / 1e9)};
}

double sockets_gb_s(size_t streams, int buffer_bytes, size_t memory_bytes = kPieceBytes) {
  return sockets(streams, Way::plain, buffer_bytes, memory_bytes).gb_s;
}

// --- a session's link ----------------------------------------------------------------------------------------------

void send_frames(link::Link& link) {
  auto bulk = std::make_shared<std::vector<std::byte>>(kBulkBytes, std::byte{1});
  for (uint64_t sequence = 1; sequence <= kFrames;) {
    uint64_t seen = 0, end = 0;
    {
      std::lock_guard lock(link);
      wire::FrameHeader header{
          .kind = uint8_t(wire::FrameKind::posted), .sequence = sequence, .bulk_bytes = kBulkBytes};
      if (std::byte* at = link.reserve(sizeof header, kBulkBytes, 0)) {
        std::memcpy(at, &header, sizeof header);
        link::ExternalBulk outside{bulk->data(), kBulkBytes, nullptr, bulk};
        if (!link.publish(sizeof header, &outside)) fail("out of memory");
        end = link.appended();
        ++sequence;
      } else {
        seen = link.room_changes();
      }
    }
    if (end) link.push(end, kLimit);
    else link.await_room(seen, std::chrono::milliseconds(100));
  }
}

void receive_frames(link::Link& link) {
  transport::FrameReceiver receiver(link, wire::Sender::client);
  std::vector<std::byte> staging(kReadBytes);
  for (size_t frames = 0; frames < kFrames;) {
    auto got = receiver.next(kLimit);
    if (got != transport::Received::frame) fail("the stream ended: " + receiver.reason());
    if (wire::FrameKind(receiver.header().kind) != wire::FrameKind::posted) continue;
    while (receiver.bulk_left() != 0)
      if (!receiver.read_bulk(staging)) fail(receiver.reason());
    if (link.consumed(link.received())) link.pump();
    ++frames;
  }
}

// Takes acknowledgements.
void receive_acknowledgements(link::Link& link, const std::atomic<bool>& over) {
  std::byte bytes[4096];
  while (!over)
    if (link.try_receive(bytes).status != transport::IoStatus::ok)
      link.wait(transport::kReadable, std::chrono::milliseconds(5));
}

double link_gb_s(size_t lanes, bool tls, size_t& used) {
  auto connect = [&] { return tls ? encrypted() : bare(); };
  Ends ends = connect();
  link::Link client(std::move(ends.first)), server(std::move(ends.second));
  client.outlive_connections();
  server.outlive_connections();
  if (lanes > 1) {
    if (!client.begin_parts(true) || !server.begin_parts(false)) fail("out of memory");
    std::vector<std::unique_ptr<transport::Transport>> near, far;
    for (size_t i = 0; i < lanes; ++i) {
      Ends lane = connect();
      near.push_back(std::move(lane.first));
      far.push_back(std::move(lane.second));
    }
    if (!server.add_lanes(*server.transport(), std::make_shared<link::LaneSet>(std::move(far), 1, false)) ||
        !client.add_lanes(*client.transport(), std::make_shared<link::LaneSet>(std::move(near), 1, true)))
      fail("no lanes");
  }
  std::atomic<bool> over{false};
  auto begun = Clock::now();
  std::thread acknowledgements([&] { receive_acknowledgements(client, over); }),
      receiver([&] { receive_frames(server); });
  send_frames(client);
  receiver.join();
  double gb_s = rate(begun);
  over = true;
  acknowledgements.join();
  used = client.lanes_in_use();
  return gb_s;
}

void measure_sends(size_t streams) {
  constexpr std::pair<const char*, Way> kWays[] = {{"plain", Way::plain},
                                                   {"zero_copy", Way::zero_copy},
                                                   {"io_uring", Way::uring},
                                                   {"io_uring_zero_copy", Way::uring_zero_copy}};
  std::printf("\"sends\": {");
  const char* comma = "";
  for (auto& [name, way] : kWays) {
    if (way >= Way::uring && !Uring::there()) continue;
    for (auto& [memory, bytes] : {std::pair("", kPieceBytes), std::pair("_of_a_copy", kCopyBytes / streams)}) {
      Measured measured = sockets(streams, way, 0, bytes);
      std::printf("%s\"%s%s\": {\"gb_s\": %.2f, \"sender_s_a_gb\": %.3f}", comma, name, memory, measured.gb_s,
                  measured.sender_s_a_gb);
      comma = ", ";
    }
  }
  std::printf("}");
}

void measure_all(size_t streams) {
  std::printf(
      "\"streams\": %zu, \"sockets_gb_s\": %.2f, \"of_a_copy_gb_s\": %.2f, \"buffers_1_mib_gb_s\": %.2f, "
      "\"buffers_8_mib_gb_s\": %.2f, ",
      streams, sockets_gb_s(streams, 0), sockets_gb_s(streams, 0, kCopyBytes / streams), sockets_gb_s(streams, 1 << 20),
      sockets_gb_s(streams, 8 << 20));
  measure_sends(streams);
  size_t plain_used = 0, tls_used = 0;
  double plain = link_gb_s(streams, false, plain_used), tls = link_gb_s(streams, true, tls_used);
  std::printf(", \"link_gb_s\": %.2f, \"link_lanes_used\": %zu, \"link_tls_gb_s\": %.2f, \"link_tls_lanes_used\": %zu",
              plain, plain_used, tls, tls_used);
}

size_t count_of(const char* text) {
  size_t count = size_t(std::atoi(text));
  if (count < 1 || count > wire::kLanesMax) fail("LANES is 1 to 16");
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  std::string word = argc > 1 ? argv[1] : "";
  if (word == "--help") {
    std::printf(
        "usage: lanes_loopback [LANES]: bandwidth over 1 to LANES (4) connections; one JSON object on stdout\n"
        "       lanes_loopback --sockets STREAMS: of plain sockets alone, over so many\n"
        "       lanes_loopback --sends STREAMS: the ways to send, over so many plain sockets\n");
    return 0;
  }
  if (argc > 2 && word == "--sockets") {
    size_t streams = count_of(argv[2]);
    std::printf("{\"streams\": %zu, \"sockets_gb_s\": %.2f, \"of_a_copy_gb_s\": %.2f}\n", streams,
                sockets_gb_s(streams, 0), sockets_gb_s(streams, 0, kCopyBytes / streams));
    return 0;
  }
  if (argc > 2 && word == "--sends") {
    std::printf("{\"streams\": %zu, ", count_of(argv[2]));
    measure_sends(count_of(argv[2]));
    std::printf("}\n");
    return 0;
  }
  size_t most = argc > 1 ? count_of(argv[1]) : 4;
  std::printf("{\"streams\": [");
  for (size_t streams = 1; streams <= most; ++streams) {
    std::printf("%s\n  {", streams == 1 ? "" : ",");
    measure_all(streams);
    std::printf("}");
    std::fflush(stdout);
  }
  std::printf("\n]}\n");
  return 0;
}
