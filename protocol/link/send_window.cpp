#include "protocol/link/send_window.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace gpuwire::link {

SendWindow::SendWindow(size_t ring_bytes, size_t bulk_bytes_max) : bytes_(ring_bytes), bulk_bytes_max_(bulk_bytes_max) {
  // The kernel allocates a page at its first write, so a session that sends little uses little memory.
  void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return;
  memory_ = static_cast<std::byte*>(mapped);
  const size_t small = (bytes_ / kSmallRingDivisor) & ~size_t(7);
  rings_[0].memory = memory_;
  rings_[0].capacity = small;
  rings_[1].memory = memory_ + small;
  rings_[1].capacity = bytes_ - small;
}

SendWindow::~SendWindow() {
  if (memory_) munmap(memory_, bytes_);
}

std::byte* SendWindow::reserve(Ring& ring, size_t bytes, size_t reserve_bytes) {
  uint64_t at = (ring.head + 7) & ~uint64_t(7);
  size_t place = size_t(at % ring.capacity);
  if (place + bytes > ring.capacity) at += ring.capacity - place;
  if (at + bytes + reserve_bytes > ring.tail + ring.capacity) return nullptr;
  reserved_in_ = &ring;
  reserved_at_ = at;
  return ring.at(at);
}

std::byte* SendWindow::reserve(size_t bytes, size_t reserve_bytes) {
  auto& [small, large] = rings_;
  if (bytes <= small.capacity / kSmallRingFrameDivisor)
    if (std::byte* room = reserve(small, bytes, 0)) return room;
  return reserve(large, bytes, reserve_bytes);
}

void SendWindow::append(Piece piece) {
  if (pieces_.full()) pieces_.set_capacity(2 * pieces_.capacity());
  pieces_.push_back(std::move(piece));
}

// Frames are contiguous in one piece, except at the end of the ring and where a frame behind bulk of odd length is
// aligned.
bool SendWindow::append_ring(size_t bytes) {
  Piece* last = pieces_.empty() ? nullptr : &pieces_.back();
  if (last && last->ring == reserved_in_ && last->ring_at + last->bytes == reserved_at_ &&
      reserved_at_ % reserved_in_->capacity != 0) {
    last->bytes += bytes;
    sending_ = std::min(sending_, pieces_.size() - 1);
    return true;
  }
  try {
    append({.begin = appended_, .bytes = bytes, .ring_at = reserved_at_, .ring = reserved_in_});
  } catch (const std::bad_alloc&) {
    return false;
  }
  ++reserved_in_->pieces;
  return true;
}

bool SendWindow::publish(size_t bytes, const ExternalBulk* external) {
  if (external) {
    try {
      append({.begin = appended_, .bytes = bytes, .ring_at = reserved_at_, .ring = reserved_in_});
    } catch (const std::bad_alloc&) {
      return false;
    }
    try {
      append({.begin = appended_ + bytes, .bytes = external->bytes, .bulk = *external});
    } catch (const std::bad_alloc&) {
      pieces_.pop_back();
      return false;
    }
    ++reserved_in_->pieces;
    external_bytes_ += external->bytes;
    appended_ += external->bytes;
  } else if (!append_ring(bytes)) {
    return false;
  }
  reserved_in_->head = reserved_at_ + bytes;
  unsent_in_ring_ += bytes;
  appended_ += bytes;
  return true;
}

size_t SendWindow::piece_at(uint64_t position) const {
  auto behind = std::upper_bound(pieces_.begin(), pieces_.end(), position,
                                 [](uint64_t at, const Piece& piece) { return at < piece.end(); });
  return size_t(behind - pieces_.begin());
}

SendWindow::Next SendWindow::next(size_t joined_bytes_max) {
  Next next;
  uint64_t offered = sent_;
  for (size_t i = sending_; i < pieces_.size() && next.ring_pieces < kRingPiecesMax; ++i) {
    const Piece& piece = pieces_[i];
    size_t skip = size_t(offered - piece.begin);
    const bool joined = piece.bulk.data && piece.bulk.bytes <= joined_bytes_max;
    if (piece.external() && next.ring_pieces && !joined) break;
    offered = piece.end();
    if (piece.external()) {
      next.external = &piece.bulk;
      next.offset = skip;
      break;
    }
    next.ring[next.ring_pieces++] = {piece.ring->at(piece.ring_at + skip), size_t(piece.bytes) - skip};
    next.ring_bytes += size_t(piece.bytes) - skip;
  }
  offered_ = std::max(offered_, offered);
  return next;
}

bool SendWindow::must_grow() const { return pieces_.full(); }

void SendWindow::advance(size_t bytes) {
  const uint64_t until = sent_ + bytes;
  while (sending_ < pieces_.size() && sent_ < until) {
    const Piece& piece = pieces_[sending_];
    const uint64_t step = std::min(piece.end(), until) - sent_;
    if (!piece.external()) unsent_in_ring_ -= size_t(step);
    sent_ += step;
    if (sent_ == piece.end()) ++sending_;
  }
}

bool SendWindow::sent(size_t bytes) {
  advance(bytes);
  const uint64_t tails = rings_[0].tail + rings_[1].tail;
  const size_t external = external_bytes_;
  free_acknowledged();
  return rings_[0].tail + rings_[1].tail != tails || external_bytes_ != external;
}

bool SendWindow::rewind(uint64_t position) {
  if (position < acknowledged_ || position > offered_) return false;
  sent_ = offered_ = position;
  sending_ = piece_at(position);
  unsent_in_ring_ = 0;
  for (size_t i = sending_; i < pieces_.size(); ++i)
    if (!pieces_[i].external()) unsent_in_ring_ += size_t(pieces_[i].end() - std::max(pieces_[i].begin, position));
  free_acknowledged();
  return true;
}

void SendWindow::drop_unsent() {
  pieces_.clear();
  external_bytes_ = unsent_in_ring_ = 0;
  sending_ = 0;
  acknowledged_ = sent_ = offered_ = appended_;
  for (Ring& ring : rings_) {
    ring.pieces = 0;
    ring.tail = ring.head;
  }
}

void SendWindow::forget_external(uint64_t position) {
  if (position == 0) return;
  size_t index = piece_at(position - 1);
  if (index == pieces_.size() || !pieces_[index].external() || pieces_[index].end() != position) return;
  pieces_[index].bulk.data = nullptr;
  pieces_[index].bulk.gather = nullptr;
}

bool SendWindow::acknowledge(uint64_t position) {
  if (position > offered_ || position < acknowledged_) return false;
  acknowledged_ = position;
  free_acknowledged();
  return true;
}

// Acknowledged bytes that a thread is still sending are freed after that thread has returned.
void SendWindow::free_acknowledged() {
  uint64_t limit = std::min(acknowledged_, sent_);
  while (!pieces_.empty() && pieces_.front().end() <= limit) {
    const Piece& first = pieces_.front();
    if (Ring* ring = first.ring) {
      ring->tail = --ring->pieces == 0 ? ring->head : first.ring_at + first.bytes;
    } else {
      external_bytes_ -= first.bulk.bytes;
    }
    pieces_.pop_front();
    --sending_;
  }
  if (pieces_.empty()) return;
  Piece& first = pieces_.front();
  if (!first.external() && first.begin < limit) {
    uint64_t gone = limit - first.begin;
    first.begin += gone;
    first.bytes -= gone;
    first.ring_at += gone;
    first.ring->tail = first.ring_at;
  }
}

}  // namespace gpuwire::link
