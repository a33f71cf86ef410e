#include "client_stub/session/send_window.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace gpuwire::client {

namespace {
constexpr size_t kCheckpointBytes = 4096;
}

SendWindow::SendWindow(size_t capacity_bytes) : capacity_(capacity_bytes), checkpoints_(2 * capacity_bytes / kCheckpointBytes + 2) {
  // Pages come when they are first written, so a session that sends little uses little.
  void* mapped = mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ring_ = mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

SendWindow::~SendWindow() {
  if (ring_) munmap(ring_, capacity_);
}

std::byte* SendWindow::reserve(size_t bytes, size_t reserve_bytes) {
  uint64_t at = (head_ + 7) & ~uint64_t(7);
  size_t place = size_t(at % capacity_);
  if (place + bytes > capacity_) at += capacity_ - place;
  if (at + bytes + reserve_bytes > tail_ + capacity_) return nullptr;
  reserved_at_ = at;
  return ring_ + at % capacity_;
}

bool SendWindow::publish(size_t bytes, uint64_t sequence, const ExternalBulk* external) {
  try {
    if (external) {
      unacknowledged_bulk_.push_back({sequence, external->bytes});
      unacknowledged_bulk_bytes_ += external->bytes;
      externals_.push_back(*external);
    }
    if (reserved_at_ != head_) gaps_.push_back({head_, reserved_at_});
  } catch (const std::bad_alloc&) {
    return false;
  }
  head_ = reserved_at_ + bytes;
  appended_bytes_ += bytes;
  if (external) {
    externals_.back().position = head_;
    appended_bytes_ += external->bytes;
  }
  if (sequence) last_sequence_ = sequence;
  if (head_ - checkpoint_position_ >= kCheckpointBytes) push_checkpoint();
  return true;
}

void SendWindow::push_checkpoint() {
  if (checkpoint_count_ == checkpoints_.size()) return;
  checkpoints_[(checkpoint_first_ + checkpoint_count_++) % checkpoints_.size()] = {last_sequence_, head_};
  checkpoint_position_ = head_;
}

// Bulk that stands at a gap's beginning belongs to the frame before the gap, and goes first.
void SendWindow::skip_gaps() {
  while (!gaps_.empty() && gaps_.front().begin == sent_ && (externals_.empty() || externals_.front().position != sent_)) {
    sent_ = gaps_.front().end;
    gaps_.pop_front();
  }
}

SendWindow::Next SendWindow::next() {
  Next next;
  skip_gaps();
  if (!externals_.empty() && externals_.front().position == sent_) {
    next.external = &externals_.front();
    return next;
  }
  uint64_t limit = externals_.empty() ? head_ : externals_.front().position;
  uint64_t at = sent_;
  for (size_t gap = 0; at < limit && next.ring_pieces < kRingPiecesMax;) {
    bool gaps_left = gap < gaps_.size();
    if (gaps_left && gaps_[gap].begin == at) {
      at = gaps_[gap++].end;
      continue;
    }
    uint64_t end = std::min(limit, (at / capacity_ + 1) * capacity_);
    if (gaps_left) end = std::min(end, gaps_[gap].begin);
    next.ring[next.ring_pieces++] = {ring_ + at % capacity_, size_t(end - at)};
    at = end;
  }
  return next;
}

bool SendWindow::ring_sent(size_t bytes) {
  sent_bytes_ += bytes;
  while (bytes) {
    skip_gaps();
    uint64_t end = gaps_.empty() ? head_ : gaps_.front().begin;
    size_t step = size_t(std::min<uint64_t>(bytes, end - sent_));
    if (!step) break;
    sent_ += step;
    bytes -= step;
  }
  uint64_t before = tail_;
  free_acknowledged();
  return tail_ != before;
}

void SendWindow::external_sent(size_t bytes) {
  ExternalBulk& external = externals_.front();
  external.sent += bytes;
  sent_bytes_ += bytes;
  if (external.sent >= external.bytes) externals_.pop_front();
}

void SendWindow::drop_unsent() {
  externals_.clear();
  gaps_.clear();
  sent_ = head_;
  sent_bytes_ = appended_bytes_;
}

bool SendWindow::acknowledge(uint64_t sequence) {
  if (sequence > last_sequence_ || sequence < acknowledged_) return false;
  acknowledged_ = sequence;
  while (!unacknowledged_bulk_.empty() && unacknowledged_bulk_.front().sequence <= sequence) {
    unacknowledged_bulk_bytes_ -= unacknowledged_bulk_.front().bytes;
    unacknowledged_bulk_.pop_front();
  }
  free_acknowledged();
  return true;
}

void SendWindow::free_acknowledged() {
  while (checkpoint_count_) {
    const Checkpoint& first = checkpoints_[checkpoint_first_];
    if (first.sequence > acknowledged_ || first.position > sent_) return;
    tail_ = first.position;
    checkpoint_first_ = (checkpoint_first_ + 1) % checkpoints_.size();
    --checkpoint_count_;
  }
}

}  // namespace gpuwire::client
