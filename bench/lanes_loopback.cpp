// What further connections bring on this machine: bandwidth over 1 to N loopback streams with plain sockets, with and
// without MSG_ZEROCOPY and by sizes of socket buffers, and of one session's link with as many lanes, bare and inside
// TLS, where bulk is read in pieces as a worker reads it. Plain sockets are measured with 1 MiB at each end, which
// stays in a core's cache, and with as much memory as a copy has. Prints one JSON object.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/loopback_ends.hpp"
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
                 kReadBytes = 8 << 20;  // a client cuts large copies into the one, a worker reads the other
constexpr size_t kFrames = 128;
constexpr size_t kStreamBytes = kBulkBytes * kFrames;

double rate(Clock::time_point begun) {
  return double(kStreamBytes) / 1e9 / std::chrono::duration<double>(Clock::now() - begun).count();
}

// --- plain sockets -------------------------------------------------------------------------------------------------

// The kernel tells on the error queue when it has let go of pages.
void take_notices(int socket) {
  char control[256];
  msghdr message{};
  do {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  } while (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0);
}

// Goes through `memory_bytes` again and again.
void send_stream(int socket, size_t bytes, size_t memory_bytes, bool zero_copy) {
  std::vector<char> memory(memory_bytes, 1);
  size_t at = 0;
  int one = 1;
  if (zero_copy && setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) != 0) fail("no SO_ZEROCOPY");
  while (bytes != 0) {
    ssize_t sent = send(socket, memory.data() + at, std::min({bytes, kPieceBytes, memory.size() - at}),
                        MSG_NOSIGNAL | (zero_copy ? MSG_ZEROCOPY : 0));
    if (zero_copy) take_notices(socket);
    if (sent < 0 && errno == ENOBUFS) continue;  // too much is pinned until notices were taken
    if (sent <= 0) fail("send");
    bytes -= size_t(sent);
    at = (at + size_t(sent)) % memory.size();
  }
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

// `buffer_bytes`: 0: as sessions have them.
double sockets_gb_s(size_t streams, bool zero_copy, int buffer_bytes, size_t memory_bytes = kPieceBytes) {
  std::vector<Ends> ends;
  for (size_t i = 0; i < streams; ++i) {
    ends.push_back(bare());
    if (!buffer_bytes) continue;
    setsockopt(ends.back().first->descriptor(), SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
    setsockopt(ends.back().second->descriptor(), SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
  }
  auto begun = Clock::now();
  std::vector<std::thread> threads;
  for (auto& [near, far] : ends) {
    threads.emplace_back([&near = near, streams, memory_bytes, zero_copy] {
      send_stream(near->descriptor(), kStreamBytes / streams, memory_bytes, zero_copy);
    });
    threads.emplace_back([&far = far, streams, memory_bytes] {
      receive_stream(far->descriptor(), kStreamBytes / streams, memory_bytes);
    });
  }
  for (auto& thread : threads) thread.join();
  return rate(begun);
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

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--help") {
    std::printf(
        "usage: lanes_loopback [LANES]: bandwidth over 1 to LANES (4) connections; one JSON object on stdout\n");
    return 0;
  }
  size_t most = argc > 1 ? size_t(std::atoi(argv[1])) : 4;
  if (most < 1 || most > wire::kLanesMax) fail("LANES is 1 to 16");
  std::printf("{\"streams\": [");
  for (size_t streams = 1; streams <= most; ++streams) {
    std::printf(
        "%s\n  {\"streams\": %zu, \"sockets_gb_s\": %.2f, \"of_a_copy_gb_s\": %.2f, \"zero_copy_gb_s\": %.2f, "
        "\"buffers_1_mib_gb_s\": %.2f, "
        "\"buffers_8_mib_gb_s\": %.2f",
        streams == 1 ? "" : ",", streams, sockets_gb_s(streams, false, 0),
        sockets_gb_s(streams, false, 0, kCopyBytes / streams), sockets_gb_s(streams, true, 0),
        sockets_gb_s(streams, false, 1 << 20), sockets_gb_s(streams, false, 8 << 20));
    size_t plain_used = 0, tls_used = 0;
    double plain = link_gb_s(streams, false, plain_used), tls = link_gb_s(streams, true, tls_used);
    std::printf(
        ", \"link_gb_s\": %.2f, \"link_lanes_used\": %zu, \"link_tls_gb_s\": %.2f, \"link_tls_lanes_used\": %zu}",
        plain, plain_used, tls, tls_used);
    std::fflush(stdout);
  }
  std::printf("\n]}\n");
  return 0;
}
