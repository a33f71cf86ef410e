#include "client_stub/session/outgoing.hpp"

#include <cstring>
#include <mutex>

namespace gpuwire::client {

namespace {

// Returns whether the bulk stays in the caller's memory instead of being copied into the window. Mid-sized bulk stays
// if it is cached or waited for: the ring overwrites all of its memory before it reuses a place, which is slow for such
// bulk.
bool external(wire::FrameKind kind, const Bulk& bulk) {
  if (bulk.bytes > wire::kPostedBulkBytesMax) return true;
  return bulk.bytes > kInlineBulkBytesMax && !bulk.gather && (bulk.keeper || kind == wire::FrameKind::called);
}

// Relaxed, and not atomic as a whole: all writers hold the lock, and readers are statistics.
void count(std::atomic<uint64_t>& counter) {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

using Lock = std::unique_lock<const link::Link>;

}  // namespace

Outgoing::Begun Outgoing::begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t words_max,
                                const Bulk& bulk, size_t reserve_bytes, Session::Slot& slot, uint64_t& room_seen) {
  bool lasts = kind == wire::FrameKind::called || ((bulk.stays || bulk.keeper) && !bulk.gather);
  if (words_max > wire::kMessageWordsMax || bulk.bytes > wire::kBulkBytesMax || (external(kind, bulk) && !lasts))
    return Begun::too_large;
  size_t message_bytes = size_t(words_max) * sizeof(capnp::word);
  const bool outside = external(kind, bulk);
  size_t inline_bytes = outside ? 0 : bulk.bytes;
  link_.lock();
  appending_ = true;
  std::byte* at = link_.reserve(sizeof frame_ + message_bytes + inline_bytes, bulk.bytes - inline_bytes, reserve_bytes);
  if (!at) {
    room_seen = link_.room_changes();
    appending_ = false;
    link_.unlock();
    return Begun::full;
  }
  frame_ = {.kind = uint8_t(kind),
            .ordinal = ordinal,
            .sequence = next_sequence_,
            .context = context,
            .bulk_bytes = bulk.bytes};
  frame_at_ = at;
  frame_bulk_ = bulk;
  frame_outside_ = outside;
  std::memset(at + sizeof frame_, 0, message_bytes);
  slot.words = kj::arrayPtr(reinterpret_cast<capnp::word*>(at + sizeof frame_), words_max);
  slot.sequence = next_sequence_;
  return Begun::ok;
}

Outgoing::Committed Outgoing::commit(size_t words_used) {
  Committed committed;
  Lock lock(link_, std::adopt_lock);
  frame_.message_words = uint32_t(words_used);
  std::memcpy(frame_at_, &frame_, sizeof frame_);
  size_t bytes = sizeof frame_ + words_used * sizeof(capnp::word);
  link::ExternalBulk outside{static_cast<const std::byte*>(frame_bulk_.data), frame_bulk_.bytes, frame_bulk_.gather,
                             std::move(frame_bulk_.keeper)};
  committed.external = frame_outside_;
  committed.bulk_bytes = frame_bulk_.bytes;
  if (!committed.external && frame_bulk_.bytes) {
    if (frame_bulk_.gather) (*frame_bulk_.gather)(0, {frame_at_ + bytes, frame_bulk_.bytes});
    else std::memcpy(frame_at_ + bytes, frame_bulk_.data, frame_bulk_.bytes);
    bytes += frame_bulk_.bytes;
  }
  appending_ = false;
  if (!link_.publish(bytes, committed.external ? &outside : nullptr)) {
    committed.failed = true;
    return committed;
  }
  t_traffic.bytes_sent += bytes + (committed.external ? frame_bulk_.bytes : 0);
  last_sequence_.store(next_sequence_++, std::memory_order_relaxed);
  bool posted = frame_.kind == uint8_t(wire::FrameKind::posted);
  count(posted ? stats_.posted : stats_.called);
  committed.bytes_end = link_.appended();
  // The session's thread sends bulk that no caller waits for, so that the caller need not copy it into the socket.
  committed.flush =
      !link_.blocked() && (link_.unsent_in_ring() >= kFlushBytes || (posted && thread_ == Thread::unavailable));
  if (posted && thread_ == Thread::none) {
    committed.start_thread = true;
    thread_ = Thread::awake;
  }
  if (posted && thread_ == Thread::asleep) {
    committed.wake_thread = true;
    thread_ = Thread::awake;
  }
  return committed;
}

void Outgoing::abandon() {
  frame_bulk_.keeper.reset();
  appending_ = false;
  link_.unlock();
}

bool Outgoing::take_back_from_left_call() {
  if (!link_.is_locked_by_this_thread() || !appending_) return false;
  abandon();
  return true;
}

void Outgoing::try_goodbye(bool receives) {
  if (!link_.try_lock()) return;
  const bool inside = link_.is_inside(receives);
  const wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::control),
                                 .ordinal = uint32_t(wire::ControlOrdinal::goodbye)};
  if (std::byte* at = link_.reserve(sizeof header, 0, 0)) {
    std::memcpy(at, &header, sizeof header);
    link_.publish_at_end(sizeof header);
  }
  if (!inside) link_.send_at_end();
  link_.unlock();
}

uint64_t Outgoing::appended_bytes() const {
  Lock lock(link_);
  return link_.appended();
}

bool Outgoing::all_sent() const {
  Lock lock(link_);
  return link_.everything_sent();
}

bool Outgoing::append_control(wire::ControlOrdinal ordinal, kj::ArrayPtr<const capnp::word> message) {
  wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::control),
                           .ordinal = uint32_t(ordinal),
                           .message_words = uint32_t(message.size())};
  auto words = message.asBytes();
  Lock lock(link_);
  std::byte* at = link_.reserve(sizeof header + words.size(), 0, 0);
  if (!at) return false;
  std::memcpy(at, &header, sizeof header);
  if (words.size()) std::memcpy(at + sizeof header, words.begin(), words.size());
  return link_.publish(sizeof header + words.size());
}

bool Outgoing::thread_falls_asleep() {
  Lock lock(link_);
  if (!link_.everything_sent()) return false;
  thread_ = Thread::asleep;
  return true;
}

void Outgoing::thread_woke() {
  Lock lock(link_);
  thread_ = Thread::awake;
}

bool Outgoing::thread_is_wanted() {
  Lock lock(link_);
  if (thread_ != Thread::none) return false;
  thread_ = Thread::awake;
  return true;
}

void Outgoing::thread_is_unavailable() {
  Lock lock(link_);
  thread_ = Thread::unavailable;
}

}  // namespace gpuwire::client
