// The bytes that one side of a session has sent or is about to send, and that its peer has not acknowledged: bytes in
// two rings, and between them bulk that stays in place. Positions count the bytes of the stream from its beginning,
// wherever they lie. Plain data; its owner (link.hpp) has the lock.
//
// Short frames go into a small ring while it has room. One that wrote all of the window before it came back to the same
// place would write each frame to memory that no cache has any more.
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

// Pieces of the ring that are sent with one system call.
inline constexpr size_t kRingPiecesMax = 8;
// The small ring's part of the window's ring, and the longest frame in it.
inline constexpr size_t kSmallRingDivisor = 64, kSmallRingFrameDivisor = 16;

inline constexpr size_t kPiecesAtFirst = 256;

// Bulk in somebody else's memory, which may be read again until it is acknowledged.
struct ExternalBulk {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  // Instead of data: fills `out` with the bytes from `offset` on, any offset at any time.
  const std::function<void(size_t offset, std::span<std::byte> out)>* gather = nullptr;
  std::shared_ptr<const void>
      keeper;  // the owner of the memory, if it has to stay alive; released under the owner's lock
  // Neither data nor gather: the owner has taken its memory back, and zeros stand for it.
};

class SendWindow {
 public:
  // `ring_bytes`: of both rings. At most `bulk_bytes_max` of bulk outside them go without an acknowledgement.
  explicit SendWindow(size_t ring_bytes = wire::kSendWindowBytes, size_t bulk_bytes_max = wire::kBulkWindowBytes);
  ~SendWindow();
  SendWindow(const SendWindow&) = delete;
  SendWindow& operator=(const SendWindow&) = delete;
  bool valid() const { return memory_ != nullptr; }

  // --- appending ---------------------------------------------------------------------------------------------------
  // Contiguous room, 8-byte aligned; null when there is none just now. `reserve_bytes` of the large ring stay free.
  std::byte* reserve(size_t bytes, size_t reserve_bytes);
  bool external_allowed(size_t bytes) const { return external_bytes_ + bytes <= bulk_bytes_max_; }
  // Appends the first `bytes` of the last reservation, and `external` behind them. False: no memory, and nothing was
  // appended.
  bool publish(size_t bytes, const ExternalBulk* external);
  // May the next publish() allocate memory?
  bool must_grow() const;

  // --- sending -----------------------------------------------------------------------------------------------------
  // The next bytes to send: `ring` pieces, and behind them external bulk from `offset` on. Neither is set: everything
  // is sent. All of it counts as offered: the peer may have it before sent() is called.
  struct Next {
    iovec ring[kRingPiecesMax];
    size_t ring_pieces = 0;
    size_t ring_bytes = 0;
    const ExternalBulk* external = nullptr;  // stays in place until sent() has passed its last byte
    size_t offset = 0;
  };
  // External bulk stands behind pieces of the ring if it is of at most `joined_bytes_max`, and lies in one place.
  Next next(size_t joined_bytes_max = 0);
  // This many bytes have left. True: that has freed room, because the peer had acknowledged them already.
  bool sent(size_t bytes);
  // The same, but nothing is freed: sent() makes room later.
  void advance(size_t bytes);
  // The bytes from `position` on are sent again: the peer has received up to there. False: it cannot have.
  bool rewind(uint64_t position);
  // Counts everything as sent, and reads nobody's memory any more.
  void drop_unsent();
  // The bulk that ends at `position` is not needed any more; zeros are sent in its place.
  void forget_external(uint64_t position);

  // --- acknowledgements --------------------------------------------------------------------------------------------
  // The peer has taken over everything before `position`. False: it cannot have, or it says less than before.
  bool acknowledge(uint64_t position);

  uint64_t appended() const { return appended_; }
  uint64_t sent() const { return sent_; }
  uint64_t acknowledged() const { return acknowledged_; }
  size_t unsent_in_ring() const { return unsent_in_ring_; }
  size_t external_bytes() const { return external_bytes_; }
  size_t used_ring_bytes() const { return rings_[0].used() + rings_[1].used(); }
  size_t pieces() const { return pieces_.size(); }

 private:
  // Places count on for ever; place % capacity is the address. tail <= head <= tail + capacity.
  struct Ring {
    std::byte* memory = nullptr;
    size_t capacity = 0;
    uint64_t head = 0, tail = 0;
    size_t pieces = 0;  // that lie in it
    size_t used() const { return size_t(head - tail); }
    std::byte* at(uint64_t place) const { return memory + place % capacity; }
  };
  // Bytes of the stream that lie together.
  struct Piece {
    uint64_t begin = 0;  // position of the first one
    uint64_t bytes = 0;
    uint64_t ring_at = 0;  // place in the ring, unless it is external
    Ring* ring = nullptr;  // null: it is external
    ExternalBulk bulk;
    uint64_t end() const { return begin + bytes; }
    bool external() const { return ring == nullptr; }
  };
  std::byte* reserve(Ring& ring, size_t bytes, size_t reserve_bytes);
  bool append_ring(size_t bytes);
  void append(Piece piece);
  size_t piece_at(uint64_t position) const;
  void free_acknowledged();

  std::byte* memory_ = nullptr;  // of both rings
  const size_t bytes_, bulk_bytes_max_;
  Ring rings_[2];               // the small one, the large one
  Ring* reserved_in_ = rings_;  // where reserve() was last given room
  uint64_t reserved_at_ = 0;    // and its place there
  // Positions. acknowledged_ and sent_ <= offered_ <= appended_: bytes that were handed to a connection may arrive
  // before they count as sent.
  uint64_t appended_ = 0, offered_ = 0, sent_ = 0, acknowledged_ = 0;
  // The stored pieces, in order and without a gap, up to appended_. The array grows when it is full, and allocates
  // nothing else: a program may exit in a signal handler, whose functions would find malloc's lock taken.
  boost::circular_buffer<Piece> pieces_{kPiecesAtFirst};
  size_t sending_ = 0;         // index of the piece that sent_ lies in; pieces_.size(): all is sent
  size_t external_bytes_ = 0;  // of the pieces
  size_t unsent_in_ring_ = 0;  // of either ring
};

}  // namespace gpuwire::link
