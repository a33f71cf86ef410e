#include "protocol/link/send_window.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace gpuwire::link {

SendWindow::SendWindow(size_t ring_bytes, size_t bulk_bytes_max)
    : capacity_(ring_bytes), bulk_bytes_max_(bulk_bytes_max) {
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

// Frames lie one behind the other in one piece, but for the end of the ring and what aligns a frame behind bulk of odd
// length.
bool SendWindow::append_ring(size_t bytes) {
  Piece* last = pieces_.empty() ? nullptr : &pieces_.back();
  if (last && !last->external && last->ring_at + last->bytes == reserved_at_ && reserved_at_ % capacity_ != 0) {
    last->bytes += bytes;
    sending_ = std::min(sending_, pieces_.size() - 1);
    return true;
  }
  try {
    pieces_.push_back({.begin = appended_, .bytes = bytes, .ring_at = reserved_at_});
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

bool SendWindow::publish(size_t bytes, const ExternalBulk* external) {
  if (external) {
    try {
      pieces_.push_back({.begin = appended_, .bytes = bytes, .ring_at = reserved_at_});
    } catch (const std::bad_alloc&) {
      return false;
    }
    try {
      pieces_.push_back({.begin = appended_ + bytes, .bytes = external->bytes, .external = true, .bulk = *external});
    } catch (const std::bad_alloc&) {
      pieces_.pop_back();
      return false;
    }
    external_bytes_ += external->bytes;
    appended_ += external->bytes;
  } else if (!append_ring(bytes)) {
    return false;
  }
  head_ = reserved_at_ + bytes;
  appended_ += bytes;
  return true;
}

size_t SendWindow::piece_at(uint64_t position) const {
  auto behind = std::upper_bound(pieces_.begin(), pieces_.end(), position,
                                 [](uint64_t at, const Piece& piece) { return at < piece.end(); });
  return size_t(behind - pieces_.begin());
}

// Where in the ring the stream goes on at `position`, which is not before what is kept.
uint64_t SendWindow::ring_position(uint64_t position) const {
  for (size_t i = sending_; i < pieces_.size(); ++i)
    if (!pieces_[i].external)
      return pieces_[i].ring_at + (position > pieces_[i].begin ? position - pieces_[i].begin : 0);
  return head_;
}

SendWindow::Next SendWindow::next() {
  Next next;
  uint64_t offered = sent_;
  for (size_t i = sending_; i < pieces_.size() && next.ring_pieces < kRingPiecesMax; ++i) {
    const Piece& piece = pieces_[i];
    size_t skip = size_t(offered - piece.begin);
    if (piece.external && next.ring_pieces) break;
    offered = piece.end();
    if (piece.external) {
      next.external = &piece.bulk;
      next.offset = skip;
      break;
    }
    next.ring[next.ring_pieces++] = {ring_ + (piece.ring_at + skip) % capacity_, size_t(piece.bytes) - skip};
  }
  offered_ = std::max(offered_, offered);
  return next;
}

bool SendWindow::sent(size_t bytes) {
  sent_ += bytes;
  while (sending_ < pieces_.size() && pieces_[sending_].end() <= sent_) ++sending_;
  uint64_t tail = tail_;
  size_t external = external_bytes_;
  free_acknowledged();
  return tail_ != tail || external_bytes_ != external;
}

bool SendWindow::rewind(uint64_t position) {
  if (position < acknowledged_ || position > offered_) return false;
  sent_ = offered_ = position;
  sending_ = piece_at(position);
  free_acknowledged();
  return true;
}

void SendWindow::drop_unsent() {
  pieces_.clear();
  external_bytes_ = 0;
  sending_ = 0;
  acknowledged_ = sent_ = offered_ = appended_;
  tail_ = head_;
}

void SendWindow::forget_external(uint64_t position) {
  if (position == 0) return;
  size_t index = piece_at(position - 1);
  if (index == pieces_.size() || !pieces_[index].external || pieces_[index].end() != position) return;
  pieces_[index].bulk.data = nullptr;
  pieces_[index].bulk.gather = nullptr;
}

bool SendWindow::acknowledge(uint64_t position) {
  if (position > offered_ || position < acknowledged_) return false;
  acknowledged_ = position;
  free_acknowledged();
  return true;
}

// What has been acknowledged while a thread is still sending it stays until that thread is back.
void SendWindow::free_acknowledged() {
  uint64_t limit = std::min(acknowledged_, sent_);
  while (!pieces_.empty() && pieces_.front().end() <= limit) {
    if (pieces_.front().external) external_bytes_ -= pieces_.front().bulk.bytes;
    pieces_.pop_front();
    --sending_;
  }
  if (pieces_.empty()) {
    tail_ = head_;
    return;
  }
  Piece& first = pieces_.front();
  if (!first.external && first.begin < limit) {
    uint64_t gone = limit - first.begin;
    first.begin += gone;
    first.bytes -= gone;
    first.ring_at += gone;
  }
  // Behind external bulk there is a frame in the ring, or nothing.
  tail_ = !first.external ? first.ring_at : pieces_.size() > 1 ? pieces_[1].ring_at : head_;
}

}  // namespace gpuwire::link
