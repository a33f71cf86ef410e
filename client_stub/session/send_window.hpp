// What has been appended to the call stream and is not acknowledged yet: frames one behind the other in a ring, and between them bulk that
// is sent from the caller's memory. Plain data; its owner (outgoing.hpp) has the lock.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

// Kept free of ordinary frames, for those that a notice handler posts: the thread that runs it cannot wait for room, because room comes
// with the acknowledgements that the same thread receives.
inline constexpr size_t kNoticeReserveBytes = 512 * 1024;
// And so much more for the answers to host functions: the server may take nothing over until it has got one.
inline constexpr size_t kAnswerReserveBytes = 1024 * 1024;
// Frames with bulk outside the ring that are not sent yet.
inline constexpr size_t kExternalBulksMax = 64;
// Pieces of the ring that are sent with one system call.
inline constexpr size_t kRingPiecesMax = 8;

// Bulk in the caller's memory.
struct ExternalBulk {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  const std::function<void(size_t, std::span<std::byte>)>* gather = nullptr;  // instead of data
  uint64_t position = 0;  // set by SendWindow: comes when the ring is sent up to here
  size_t sent = 0;
};

class SendWindow {
 public:
  explicit SendWindow(size_t capacity_bytes = wire::kSendWindowBytes);
  ~SendWindow();
  SendWindow(const SendWindow&) = delete;
  SendWindow& operator=(const SendWindow&) = delete;
  bool valid() const { return ring_ != nullptr; }

  // Contiguous room, 8-byte aligned; null when there is none just now. `reserve_bytes` of the ring stay free.
  std::byte* reserve(size_t bytes, size_t reserve_bytes);
  bool external_room() const { return externals_.size() < kExternalBulksMax; }
  // Would that much more bulk outside the ring be within what may go without an acknowledgement?
  bool external_allowed(size_t bytes) const { return unacknowledged_bulk_bytes_ + bytes <= wire::kBulkWindowBytes; }
  // Appends the first `bytes` of what was reserved last. `sequence`: 0 for frames that are not acknowledged. False: no memory.
  bool publish(size_t bytes, uint64_t sequence, const ExternalBulk* external);

  // --- sending -----------------------------------------------------------------------------------------------------------------------------
  // The next bytes to send: `ring` pieces, or the external bulk that is next. Only one is set; both empty: everything is sent.
  struct Next {
    iovec ring[kRingPiecesMax];
    size_t ring_pieces = 0;
    const ExternalBulk* external = nullptr;
  };
  Next next();
  // True: that has made room, because the server had acknowledged it already.
  bool ring_sent(size_t bytes);
  void external_sent(size_t bytes);
  // Bytes appended and sent since the start, external bulk included.
  uint64_t appended_bytes() const { return appended_bytes_; }
  uint64_t sent_bytes() const { return sent_bytes_; }
  // Of the frames in the ring, without external bulk; gaps count.
  uint64_t unsent_in_ring() const { return head_ - sent_; }
  // Counts everything as sent: the connection takes no more.
  void drop_unsent();

  // Frees what is acknowledged and sent. False: there is no such frame, or it goes backwards.
  bool acknowledge(uint64_t sequence);
  uint64_t last_sequence() const { return last_sequence_; }
  size_t used_bytes() const { return size_t(head_ - tail_); }

 private:
  void skip_gaps();
  void push_checkpoint();
  void free_acknowledged();

  std::byte* ring_ = nullptr;
  size_t capacity_;
  // Positions count on for ever; position % capacity_ is the place in the ring. tail_ <= sent_ <= head_ <= tail_ + capacity_.
  uint64_t head_ = 0, sent_ = 0, tail_ = 0;
  uint64_t reserved_at_ = 0;
  // Places that are not sent: the end of the ring when a frame did not fit there, and what aligns a frame behind bulk of odd length.
  struct Gap {
    uint64_t begin, end;
  };
  std::deque<Gap> gaps_;  // between sent_ and head_
  uint64_t appended_bytes_ = 0, sent_bytes_ = 0;
  uint64_t last_sequence_ = 0;
  uint64_t acknowledged_ = 0;
  std::deque<ExternalBulk> externals_;
  struct SentBulk {
    uint64_t sequence;
    size_t bytes;
  };
  std::deque<SentBulk> unacknowledged_bulk_;
  size_t unacknowledged_bulk_bytes_ = 0;  // the sum of it

  // "Up to this sequence the frames end here", one for every few KiB, so that an acknowledgement need not walk the frames.
  struct Checkpoint {
    uint64_t sequence, position;
  };
  std::vector<Checkpoint> checkpoints_;  // a ring
  size_t checkpoint_first_ = 0, checkpoint_count_ = 0;
  uint64_t checkpoint_position_ = 0;
};

}  // namespace gpuwire::client
