#include "server/worker/connection/link_outbox.hpp"

#include <chrono>
#include <cstring>
#include <mutex>
#include <vector>

#include <capnp/message.h>

#include "protocol/wire/limits.hpp"
#include "server/worker/connection/limits.hpp"

namespace gpuwire::server {
namespace {

// Returns the message in one segment, as a frame requires. A message of several segments is copied.
kj::ArrayPtr<const capnp::word> one_segment(capnp::MessageBuilder& message,
                                            kj::Own<capnp::MallocMessageBuilder>& flat) {
  auto segments = message.getSegmentsForOutput();
  if (segments.size() == 1) return segments[0];
  auto root = message.getRoot<capnp::AnyPointer>().asReader();
  size_t words = root.targetSize().wordCount + 1;
  flat = kj::heap<capnp::MallocMessageBuilder>(uint(words), capnp::AllocationStrategy::FIXED_SIZE);
  flat->setRoot(root);
  return flat->getSegmentsForOutput()[0];
}

// Copies bulk that has no keeper.
std::shared_ptr<const void> copy_of(std::span<const std::byte>& bulk) {
  auto copy = std::make_shared<std::vector<std::byte>>(bulk.begin(), bulk.end());
  bulk = *copy;
  return copy;
}

}  // namespace

void LinkOutbox::send(wire::FrameHeader& header, capnp::MessageBuilder& message, std::span<const std::byte> bulk,
                      std::shared_ptr<const void> keeper) {
  kj::Own<capnp::MallocMessageBuilder> flat;
  auto words = one_segment(message, flat).asBytes();
  bool external = bulk.size() > wire::kPostedBulkBytesMax || (keeper && bulk.size() > kInlineBulkBytesMax);
  if (external && !keeper) keeper = copy_of(bulk);
  header.message_words = uint32_t(words.size() / sizeof(capnp::word));
  header.bulk_bytes = bulk.size();
  size_t bytes = sizeof header + words.size() + (external ? 0 : bulk.size());
  bool last_words =
      header.kind == uint8_t(wire::FrameKind::notice) && header.ordinal == uint32_t(wire::NoticeOrdinal::ending);
  std::byte* at = wait_for_room(bytes, external ? bulk.size() : 0, last_words);
  if (!at) return;
  uint64_t end = 0;
  {
    std::unique_lock lock(link_, std::adopt_lock);
    auto kind = wire::FrameKind(header.kind);
    if (kind == wire::FrameKind::notice) header.sequence = notice_sequence_ + 1;
    std::memcpy(at, &header, sizeof header);
    std::memcpy(at + sizeof header, words.begin(), words.size());
    if (!external && !bulk.empty()) std::memcpy(at + sizeof header + words.size(), bulk.data(), bulk.size());
    link::ExternalBulk outside{bulk.data(), bulk.size(), nullptr, std::move(keeper)};
    if (!link_.publish(bytes, external ? &outside : nullptr)) throw std::bad_alloc();
    notice_sequence_ += kind == wire::FrameKind::notice;
    meter_.sent(bytes + (external ? bulk.size() : 0), kind == wire::FrameKind::reply);
    end = link_.appended();
  }
  push(end);
}

std::byte* LinkOutbox::wait_for_room(size_t bytes, size_t external_bytes, bool last_words) {
  bool reads_ahead = hooks_.reads_ahead();
  // Each thread of the program has at most one call that the reading thread executes, so the bytes beyond the bound are
  // bounded by the number of threads.
  if (reads_ahead) external_bytes = 0;
  for (;;) {
    link_.lock();
    if (std::byte* at = link_.reserve(bytes, external_bytes, reads_ahead || last_words ? 0 : kReadAheadReserveBytes))
      return at;
    uint64_t seen = link_.room_changes();
    link_.unlock();
    if (reads_ahead || last_words) return nullptr;
    room_waiters_.fetch_add(1, std::memory_order_relaxed);
    hooks_.room_wanted();
    bool goes_on = link_.await_room(seen, std::chrono::milliseconds(kRoomPollMs));
    room_waiters_.fetch_sub(1, std::memory_order_relaxed);
    if (!goes_on) return nullptr;
  }
}

void LinkOutbox::push(uint64_t position) { link_.push(position, std::chrono::milliseconds(kPeerStallMs)); }

void LinkOutbox::reply(uint64_t sequence, capnp::MessageBuilder& message, std::span<const std::byte> bulk) {
  reply_kept(sequence, message, bulk, nullptr);
}

void LinkOutbox::reply_kept(uint64_t sequence, capnp::MessageBuilder& message, std::span<const std::byte> bulk,
                            std::shared_ptr<const void> keeper) {
  wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::reply), .sequence = sequence};
  last_reply_.store(sequence, std::memory_order_relaxed);
  if (!withheld_.load(std::memory_order_acquire)) send(header, message, bulk, std::move(keeper));
}

void LinkOutbox::notice(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message, std::span<const std::byte> bulk) {
  notice_kept(ordinal, message, bulk, nullptr);
}

void LinkOutbox::notice_kept(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message,
                             std::span<const std::byte> bulk, std::shared_ptr<const void> keeper) {
  wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::notice), .ordinal = uint32_t(ordinal)};
  send(header, message, bulk, std::move(keeper));
}

void LinkOutbox::control(wire::ControlOrdinal ordinal, capnp::MessageBuilder& message) {
  wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::control), .ordinal = uint32_t(ordinal)};
  send(header, message, {}, nullptr);
}

}  // namespace gpuwire::server
