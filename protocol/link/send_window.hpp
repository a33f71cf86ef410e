// SendWindow holds the bytes that one side of a session has appended and that its peer has not acknowledged: bytes in
// two rings, and between them bulk that stays in its owner's memory. Positions count the bytes of the stream from its
// beginning, wherever the bytes are stored. Lock: the owner's (link.hpp).
//
// Short frames go into a small ring while it has room. In the large ring, a frame would be written to memory that was
// last used a whole window ago and that is no longer in any cache.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include <boost/circular_buffer.hpp>

#include "protocol/wire/limits.hpp"

namespace gpuwire::link {

// The maximum of pieces of the ring that are sent with one system call.
inline constexpr size_t kRingPiecesMax = 8;
// The small ring is this fraction of both rings, and a frame in it is at most this fraction of the small ring.
inline constexpr size_t kSmallRingDivisor = 64, kSmallRingFrameDivisor = 16;

inline constexpr size_t kPiecesAtFirst = 256;

// Bulk in a caller's memory. The window may read that memory again until the bulk is acknowledged.
struct ExternalBulk {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  // Replaces `data`: writes the bytes from `offset` on to `out`. Called with any offset at any time.
  const std::function<void(size_t offset, std::span<std::byte> out)>* gather = nullptr;
  // Keeps the memory alive if its owner would not; released under the lock of the window's owner.
  std::shared_ptr<const void> keeper;
  // If both `data` and `gather` are null, the owner has taken its memory back, and zeros are sent in its place.
};

class SendWindow {
 public:
  // `ring_bytes` is the size of both rings together. `bulk_bytes_max` limits the unacknowledged bulk outside the rings.
  explicit SendWindow(size_t ring_bytes = wire::kSendWindowBytes, size_t bulk_bytes_max = wire::kBulkWindowBytes);
  ~SendWindow();
  SendWindow(const SendWindow&) = delete;
  SendWindow& operator=(const SendWindow&) = delete;
  bool valid() const { return memory_ != nullptr; }

  // --- appending ---------------------------------------------------------------------------------------------------
  // Returns contiguous room, 8-byte aligned, or null if there is none now. `reserve_bytes` of the large ring stay free.
  std::byte* reserve(size_t bytes, size_t reserve_bytes);
  bool external_allowed(size_t bytes) const { return external_bytes_ + bytes <= bulk_bytes_max_; }
  // Appends the first `bytes` of the last reservation, and `external` behind them. Returns false, and appends nothing,
  // if memory is short.
  bool publish(size_t bytes, const ExternalBulk* external);
  // Returns true if the next publish() may allocate memory.
  bool must_grow() const;

  // --- sending -----------------------------------------------------------------------------------------------------
  // The next bytes to send: `ring` pieces, and behind them external bulk from `offset` on. If there is neither,
  // everything has been sent. The bytes count as offered, because the peer may receive them before sent() is called.
  struct Next {
    iovec ring[kRingPiecesMax];
    size_t ring_pieces = 0;
    size_t ring_bytes = 0;
    // Stays valid until sent() has passed its last byte.
    const ExternalBulk* external = nullptr;
    size_t offset = 0;
  };
  // Appends external bulk to pieces of the ring if the bulk has at most `joined_bytes_max` bytes and is contiguous.
  Next next(size_t joined_bytes_max = 0);
  // Counts `bytes` as sent. Returns true if that has freed room, because the peer had acknowledged them already.
  bool sent(size_t bytes);
  // Counts `bytes` as sent like sent(), but frees nothing; a later sent() does.
  void advance(size_t bytes);
  // Sends the bytes from `position` on again, because the peer has received those before. Returns false if it cannot
  // have.
  bool rewind(uint64_t position);
  // Counts all bytes as sent, and reads no caller's memory any more.
  void drop_unsent();
  // The bulk that ends at `position` is no longer needed. Zeros are sent in its place.
  void forget_external(uint64_t position);

  // --- acknowledgements --------------------------------------------------------------------------------------------
  // The peer has consumed everything before `position`. Returns false if it cannot have, or has acknowledged more
  // before.
  bool acknowledge(uint64_t position);

  uint64_t appended() const { return appended_; }
  uint64_t sent() const { return sent_; }
  uint64_t acknowledged() const { return acknowledged_; }
  size_t unsent_in_ring() const { return unsent_in_ring_; }
  size_t external_bytes() const { return external_bytes_; }
  size_t used_ring_bytes() const { return rings_[0].used() + rings_[1].used(); }
  size_t pieces() const { return pieces_.size(); }

 private:
  // Head and tail count the bytes of the ring and never wrap; place % capacity is the offset. tail <= head <= tail +
  // capacity.
  struct Ring {
    std::byte* memory = nullptr;
    size_t capacity = 0;
    uint64_t head = 0, tail = 0;
    // Number of pieces in this ring.
    size_t pieces = 0;
    size_t used() const { return size_t(head - tail); }
    std::byte* at(uint64_t place) const { return memory + place % capacity; }
  };
  // Contiguous bytes of the stream.
  struct Piece {
    // Position of the first byte.
    uint64_t begin = 0;
    uint64_t bytes = 0;
    // Place in the ring, unless the piece is external.
    uint64_t ring_at = 0;
    // Null: the piece is external.
    Ring* ring = nullptr;
    ExternalBulk bulk;
    uint64_t end() const { return begin + bytes; }
    bool external() const { return ring == nullptr; }
  };
  std::byte* reserve(Ring& ring, size_t bytes, size_t reserve_bytes);
  bool append_ring(size_t bytes);
  void append(Piece piece);
  size_t piece_at(uint64_t position) const;
  void free_acknowledged();

  // The memory of both rings.
  std::byte* memory_ = nullptr;
  const size_t bytes_, bulk_bytes_max_;
  // The small ring, the large ring.
  Ring rings_[2];
  // The ring of the last reservation.
  Ring* reserved_in_ = rings_;
  // The place of the last reservation.
  uint64_t reserved_at_ = 0;
  // Positions. acknowledged_ and sent_ <= offered_ <= appended_: bytes that were given to a connection may arrive
  // before they count as sent.
  uint64_t appended_ = 0, offered_ = 0, sent_ = 0, acknowledged_ = 0;
  // The stored pieces, in order and without gaps, up to appended_. The array grows only when it is full, and nothing
  // else allocates: a program may exit in a signal handler that has interrupted malloc() with its lock held.
  boost::circular_buffer<Piece> pieces_{kPiecesAtFirst};
  // Index of the piece that contains sent_; pieces_.size(): all is sent.
  size_t sending_ = 0;
  // In all pieces.
  size_t external_bytes_ = 0;
  // In both rings.
  size_t unsent_in_ring_ = 0;
};

}  // namespace gpuwire::link
