#include "protocol/transport/shared_memory_setup.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "protocol/transport/descriptor_passing.hpp"
#include "protocol/wire/frame.hpp"
#include "protocol/wire/ordinals.hpp"

namespace gpuwire::transport {

namespace {

using Clock = std::chrono::steady_clock;

wire::FrameHeader setup_frame(uint64_t version) {
  return {.kind = uint8_t(wire::FrameKind::control),
          .ordinal = uint32_t(wire::ControlOrdinal::shared_memory),
          .sequence = version};
}

bool is_setup_frame(const wire::FrameHeader& header) {
  wire::FrameHeader plain = setup_frame(header.sequence);
  return std::memcmp(&header, &plain, sizeof header) == 0;
}

// Receives an answer, and the descriptor that may be passed with it.
IoResult receive_answer(Transport& socket, wire::FrameHeader& answer, int& descriptor, Nanoseconds timeout) {
  auto deadline = Clock::now() + timeout;
  size_t got = 0;
  while (got < sizeof answer) {
    iovec piece{reinterpret_cast<std::byte*>(&answer) + got, sizeof answer - got};
    PassedDescriptors passed;
    ssize_t moved = receive_with_descriptors(socket.descriptor(), {&piece, 1}, passed).bytes;
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      auto left = deadline - Clock::now();
      if (left.count() <= 0) return {IoStatus::would_block};
      socket.wait(kReadable, left);
      continue;
    }
    if (moved < 0) return {IoStatus::failed, 0, errno};
    if (passed.count() > 0) {
      if (descriptor >= 0) close(descriptor);
      descriptor = passed.take(0);
    }
    if (moved == 0) return {IoStatus::closed};
    got += size_t(moved);
  }
  return {IoStatus::ok, got};
}

bool send_answer(Transport& socket, uint64_t version, int descriptor) {
  wire::FrameHeader answer = setup_frame(version);
  iovec piece{&answer, sizeof answer};
  std::span<const int> passed(&descriptor, descriptor >= 0 ? 1u : 0u);
  // These are the first bytes of the socket in this direction: they fit, or the socket is gone.
  return send_with_descriptors(socket.descriptor(), {&piece, 1}, passed) == ssize_t(sizeof answer);
}

// Replaces the socket's stream by shared memory. Returns null if too many files are open.
std::unique_ptr<Transport> put_before(const Transport& socket, SharedMemoryFile file, SharedMemorySide side) {
  int same = fcntl(socket.descriptor(), F_DUPFD_CLOEXEC, 0);
  if (same < 0) return nullptr;
  auto connection = adopt_shared_memory(std::move(file), same, side, socket.peer());
  if (!connection) close(same);
  return connection;
}

}  // namespace

Agreed ask_for_shared_memory(std::unique_ptr<Transport> socket, Nanoseconds timeout) {
  wire::FrameHeader asked = setup_frame(shared_memory::kVersion);
  iovec piece{&asked, sizeof asked};
  if (auto sent = send_all(*socket, {&piece, 1}, timeout); sent.status != IoStatus::ok)
    return {std::move(socket), describe(sent), true};
  wire::FrameHeader answer;
  int descriptor = -1;
  auto received = receive_answer(*socket, answer, descriptor, timeout);
  if (received.status != IoStatus::ok || !is_setup_frame(answer)) {
    if (descriptor >= 0) close(descriptor);
    return {std::move(socket),
            received.status == IoStatus::ok ? "the server's answer is no answer" : describe(received), true};
  }
  if (answer.sequence == 0 || descriptor < 0) {
    if (descriptor >= 0) close(descriptor);
    // A proxy between the two ends passes on bytes only.
    if (answer.sequence != 0)
      return {std::move(socket), "its descriptor did not arrive (--transport tcp does without)", true};
    return {std::move(socket), "the server has none to give"};
  }
  // From here on the server uses the memory.
  auto file = SharedMemoryFile::open(descriptor);
  if (!file) return {std::move(socket), file.error(), true};
  auto connection = put_before(*socket, std::move(*file), SharedMemorySide::client);
  if (!connection) return {std::move(socket), "too many open files", true};
  return {std::move(connection), {}};
}

Agreed offer_shared_memory(std::unique_ptr<Transport> socket, Nanoseconds timeout, uint32_t ring_bytes) {
  wire::FrameHeader asked;
  if (!socket->wait(kReadable, timeout)) return {std::move(socket), {}};
  // A client that asks for shared memory sends these bytes at once. Fewer bytes are left to the decoder of frames,
  // which rejects them.
  ssize_t seen = recv(socket->descriptor(), &asked, sizeof asked, MSG_PEEK | MSG_DONTWAIT);
  if (seen != ssize_t(sizeof asked) || !is_setup_frame(asked)) return {std::move(socket), {}};
  recv(socket->descriptor(), &asked, sizeof asked, MSG_DONTWAIT);
  auto decline = [&](std::string why) -> Agreed {
    bool told = send_answer(*socket, 0, -1);
    return {std::move(socket), std::move(why), !told};
  };
  if (asked.sequence != shared_memory::kVersion)
    return decline("the client asks for shared memory of version " + std::to_string(asked.sequence));
  auto file = SharedMemoryFile::create(ring_bytes);
  if (!file) return decline("no shared memory for the client: " + file.error());
  int passed = fcntl(file->descriptor(), F_DUPFD_CLOEXEC, 0);
  auto connection = passed < 0 ? nullptr : put_before(*socket, std::move(*file), SharedMemorySide::server);
  if (!connection) {
    if (passed >= 0) close(passed);
    return decline("no shared memory for the client: too many open files");
  }
  bool told = send_answer(*socket, shared_memory::kVersion, passed);
  close(passed);
  if (!told) return {std::move(socket), "the client has gone", true};
  return {std::move(connection), {}};
}

}  // namespace gpuwire::transport
