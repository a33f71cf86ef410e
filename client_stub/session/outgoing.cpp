#include "client_stub/session/outgoing.hpp"

#include <algorithm>
#include <cstring>

namespace gpuwire::client {

namespace {

constexpr size_t kBounceBytes = 256 * 1024;

bool external(const Bulk& bulk) { return bulk.bytes > wire::kPostedBulkBytesMax; }

// Relaxed and not atomic as a whole: all writers hold the lock, readers are statistics.
void count(std::atomic<uint64_t>& counter, uint64_t by) { counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed); }

}  // namespace

Outgoing::Begun Outgoing::begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t words_max, const Bulk& bulk, size_t reserve_bytes,
                                Session::Slot& slot, uint64_t& room_seen) {
  bool lasts = kind == wire::FrameKind::called || (bulk.stays && !bulk.gather);
  if (words_max > wire::kMessageWordsMax || bulk.bytes > wire::kBulkBytesMax || (external(bulk) && !lasts)) return Begun::too_large;
  size_t message_bytes = size_t(words_max) * sizeof(capnp::word);
  size_t inline_bytes = external(bulk) ? 0 : bulk.bytes;
  mutex_.lock();
  std::byte* at = window_.reserve(sizeof frame_ + message_bytes + inline_bytes, reserve_bytes);
  bool allowed = at && (!external(bulk) || window_.external_allowed(bulk.bytes));
  if (!allowed || (external(bulk) && !window_.external_room())) {
    room_seen = room_changes();
    mutex_.unlock();
    return allowed ? Begun::bulks_full : Begun::full;
  }
  frame_ = {.kind = uint8_t(kind), .ordinal = ordinal, .sequence = next_sequence_, .context = context, .bulk_bytes = bulk.bytes};
  frame_at_ = at;
  frame_bulk_ = bulk;
  std::memset(at + sizeof frame_, 0, message_bytes);
  slot.words = kj::arrayPtr(reinterpret_cast<capnp::word*>(at + sizeof frame_), words_max);
  slot.sequence = next_sequence_;
  return Begun::ok;
}

Outgoing::Committed Outgoing::commit(size_t words_used) {
  Committed committed;
  std::unique_lock lock(mutex_, std::adopt_lock);
  frame_.message_words = uint32_t(words_used);
  std::memcpy(frame_at_, &frame_, sizeof frame_);
  size_t bytes = sizeof frame_ + words_used * sizeof(capnp::word);
  ExternalBulk outside{static_cast<const std::byte*>(frame_bulk_.data), frame_bulk_.bytes, frame_bulk_.gather};
  if (!external(frame_bulk_) && frame_bulk_.bytes) {
    if (frame_bulk_.gather)
      (*frame_bulk_.gather)(0, {frame_at_ + bytes, frame_bulk_.bytes});
    else
      std::memcpy(frame_at_ + bytes, frame_bulk_.data, frame_bulk_.bytes);
    bytes += frame_bulk_.bytes;
  }
  if (!window_.publish(bytes, frame_.sequence, external(frame_bulk_) ? &outside : nullptr)) {
    committed.failed = true;
    return committed;
  }
  t_traffic.bytes_sent += bytes + (external(frame_bulk_) ? frame_bulk_.bytes : 0);
  last_sequence_.store(next_sequence_++, std::memory_order_relaxed);
  bool posted = frame_.kind == uint8_t(wire::FrameKind::posted);
  count(posted ? stats_.posted : stats_.called, 1);
  if (dropped_ && !sending_) forget_unsent();
  committed.bytes_end = window_.appended_bytes();
  // Bulk that nobody waits for is left to the session's thread: the caller has better to do than to carry it into the socket.
  committed.flush = !blocked_ && (window_.unsent_in_ring() >= kFlushBytes || (posted && thread_ == Thread::unavailable));
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

void Outgoing::abandon() { mutex_.unlock(); }

uint64_t Outgoing::appended_bytes() const {
  std::lock_guard lock(mutex_);
  return window_.appended_bytes();
}

bool Outgoing::all_sent() const {
  std::lock_guard lock(mutex_);
  return window_.appended_bytes() == window_.sent_bytes();
}

bool Outgoing::pump() {
  std::unique_lock lock(mutex_);
  // The thread that is sending looks again before it leaves, so what was appended up to now is in good hands.
  if (sending_) return true;
  sending_ = true;
  while (!dropped_ && send_some(lock)) {
  }
  sending_ = false;
  if (dropped_) forget_unsent();
  return !blocked_;
}

void Outgoing::forget_unsent() {
  window_.drop_unsent();
  blocked_ = false;
  sent_bytes_.store(window_.sent_bytes(), std::memory_order_release);
}

bool Outgoing::send_some(std::unique_lock<std::mutex>& lock) {
  SendWindow::Next next = window_.next();
  if (!next.external && !next.ring_pieces) {
    blocked_ = false;
    return false;
  }
  // The window's bytes stay where they are until they are sent and acknowledged, and the front entry of its bulk list until external_sent().
  lock.unlock();
  iovec piece;
  std::span<const iovec> pieces(next.ring, next.ring_pieces);
  if (next.external) {
    const ExternalBulk& bulk = *next.external;
    if (bulk.gather) {
      if (bounce_begin_ == bounce_end_) bounce_end_ = fill_bounce(bulk), bounce_begin_ = 0;
      piece = {bounce_.get() + bounce_begin_, bounce_end_ - bounce_begin_};
    } else {
      piece = {const_cast<std::byte*>(bulk.data) + bulk.sent, bulk.bytes - bulk.sent};
    }
    pieces = {&piece, 1};
  }
  transport::IoResult result = transport_.try_send(pieces);
  lock.lock();
  if (result.status == transport::IoStatus::would_block) {
    blocked_ = true;
    return false;
  }
  blocked_ = false;
  if (result.status != transport::IoStatus::ok) {
    // What the server said last may still be readable and names the cause; the receiving side finds the end of it.
    dropped_ = true;
    transport_.shutdown();
    return false;
  }
  count(stats_.bytes_sent, result.bytes);
  count(stats_.flushes, 1);
  if (next.external) {
    if (next.external->gather) bounce_begin_ += result.bytes;
    window_.external_sent(result.bytes);
  } else {
    // The server may have acknowledged it while this thread was on its way back from the socket: then there is room only now.
    if (window_.ring_sent(result.bytes)) count(room_changes_, 1);
  }
  sent_bytes_.store(window_.sent_bytes(), std::memory_order_release);
  return true;
}

size_t Outgoing::fill_bounce(const ExternalBulk& bulk) {
  if (!bounce_) bounce_ = std::make_unique<std::byte[]>(kBounceBytes);
  size_t bytes = std::min(kBounceBytes, bulk.bytes - bulk.sent);
  (*bulk.gather)(bulk.sent, {bounce_.get(), bytes});
  return bytes;
}

void Outgoing::append_bare(const wire::FrameHeader& header) {
  std::lock_guard lock(mutex_);
  // Without room even in the reserve the server is 16 MiB behind; the next acknowledgement repeats what this one would say.
  std::byte* at = dropped_ ? nullptr : window_.reserve(sizeof header, 0);
  if (!at) return;
  std::memcpy(at, &header, sizeof header);
  window_.publish(sizeof header, 0, nullptr);
}

void Outgoing::append_acknowledgement(uint64_t taken_over) {
  append_bare({.kind = uint8_t(wire::FrameKind::acknowledge), .sequence = taken_over});
}

void Outgoing::append_control(wire::ControlOrdinal ordinal) { append_bare({.kind = uint8_t(wire::FrameKind::control), .ordinal = uint32_t(ordinal)}); }

bool Outgoing::acknowledged(uint64_t sequence) {
  std::lock_guard lock(mutex_);
  count(room_changes_, 1);
  return window_.acknowledge(sequence);
}

void Outgoing::drop() {
  std::lock_guard lock(mutex_);
  dropped_ = true;
  // A thread that is sending right now may be reading from a caller's memory; it drops the rest itself when it is back.
  if (!sending_) forget_unsent();
}

bool Outgoing::thread_falls_asleep() {
  std::lock_guard lock(mutex_);
  if (window_.appended_bytes() != window_.sent_bytes()) return false;
  thread_ = Thread::asleep;
  return true;
}

void Outgoing::thread_woke() {
  std::lock_guard lock(mutex_);
  thread_ = Thread::awake;
}

void Outgoing::thread_is_unavailable() {
  std::lock_guard lock(mutex_);
  thread_ = Thread::unavailable;
}

}  // namespace gpuwire::client
