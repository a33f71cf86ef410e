#include "server/worker/socket_outbox.hpp"

#include <cerrno>

#include <capnp/message.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "protocol/wire/limits.hpp"
#include "server/worker/limits.hpp"

namespace gpuwire::server {
namespace {

// A frame carries one segment. Builders that had room for the whole message have one; others are copied together.
kj::ArrayPtr<const capnp::word> one_segment(capnp::MessageBuilder& message, kj::Own<capnp::MallocMessageBuilder>& flat) {
  auto segments = message.getSegmentsForOutput();
  if (segments.size() == 1) return segments[0];
  auto root = message.getRoot<capnp::AnyPointer>().asReader();
  size_t words = root.targetSize().wordCount + 1;
  flat = kj::heap<capnp::MallocMessageBuilder>(uint(words), capnp::AllocationStrategy::FIXED_SIZE);
  flat->setRoot(root);
  return flat->getSegmentsForOutput()[0];
}

}  // namespace

bool SocketOutbox::write_all(iovec* parts, size_t count) {
  while (count != 0) {
    ssize_t sent = channel_.send(parts, count);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return false;
      pollfd ready{channel_.descriptor(), POLLOUT, 0};
      if (int events = ::poll(&ready, 1, int(kPeerStallMs)); events == 0 || (ready.revents & (POLLERR | POLLHUP))) return false;
      continue;
    }
    size_t left = size_t(sent);
    while (count != 0 && left >= parts->iov_len) {
      left -= parts->iov_len;
      ++parts;
      --count;
    }
    if (count != 0) {
      parts->iov_base = static_cast<char*>(parts->iov_base) + left;
      parts->iov_len -= left;
    }
  }
  return true;
}

void SocketOutbox::send(wire::FrameHeader& header, capnp::MessageBuilder& message, std::span<const std::byte> bulk) {
  kj::Own<capnp::MallocMessageBuilder> flat;
  auto segment = one_segment(message, flat);
  header.message_words = uint32_t(segment.size());
  header.bulk_bytes = bulk.size();
  iovec parts[3] = {{&header, sizeof header},
                    {const_cast<capnp::word*>(segment.begin()), segment.size() * sizeof(capnp::word)},
                    {const_cast<std::byte*>(bulk.data()), bulk.size()}};
  std::lock_guard lock(mutex_);
  if (broken_) return;
  if (wire::FrameKind(header.kind) == wire::FrameKind::notice) header.sequence = ++notice_sequence_;
  if (wire::FrameKind(header.kind) == wire::FrameKind::reply) channel_.replied();
  if (!write_all(parts, bulk.empty() ? 2 : 3)) {
    broken_ = true;
    ::shutdown(channel_.descriptor(), SHUT_RDWR);
  }
}

void SocketOutbox::reply(uint64_t sequence, capnp::MessageBuilder& message, std::span<const std::byte> bulk) {
  wire::FrameHeader header;
  header.kind = uint8_t(wire::FrameKind::reply);
  header.sequence = sequence;
  last_reply_.store(sequence, std::memory_order_relaxed);
  if (!withheld_.load(std::memory_order_acquire)) send(header, message, bulk);
}

void SocketOutbox::notice(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message, std::span<const std::byte> bulk) {
  wire::FrameHeader header;
  header.kind = uint8_t(wire::FrameKind::notice);
  header.ordinal = uint32_t(ordinal);
  send(header, message, bulk);
}

void SocketOutbox::control(wire::ControlOrdinal ordinal, capnp::MessageBuilder& message) {
  wire::FrameHeader header;
  header.kind = uint8_t(wire::FrameKind::control);
  header.ordinal = uint32_t(ordinal);
  send(header, message, {});
}

void SocketOutbox::acknowledge(uint64_t sequence) {
  wire::FrameHeader header;
  header.kind = uint8_t(wire::FrameKind::acknowledge);
  header.sequence = sequence;
  raw(std::as_bytes(std::span(&header, 1)));
}

void SocketOutbox::raw(std::span<const std::byte> bytes) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  std::lock_guard lock(mutex_);
  if (broken_ || write_all(&part, 1)) return;
  broken_ = true;
  ::shutdown(channel_.descriptor(), SHUT_RDWR);
}

}  // namespace gpuwire::server
