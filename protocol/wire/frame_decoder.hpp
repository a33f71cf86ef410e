// FrameDecoder cuts the bytes of a connection into frames. It knows no connection: its owner puts bytes in and takes
// frames out, so tests can try any bytes in any pieces without a connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <capnp/common.h>

#include "protocol/wire/frame.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::wire {

// Bulk from this size on is received directly into its destination, except for the bytes that arrive together with its
// frame. Behind a frame with such bulk, space() is short for this many reads: a program that copies will probably copy
// again, and no more than kShortSpaceBytes of the next bulk are then copied twice. The reads have room for dozens of
// launches.
inline constexpr uint64_t kDirectBulkBytesMin = 16u << 10;
inline constexpr size_t kShortSpaceBytes = 4u << 10;
inline constexpr unsigned kShortSpaces = 4;

// The sender of the decoded frames, which determines the allowed kinds of frames.
enum class Sender : uint8_t { client, server };

// Decodes the frames of one direction. An invalid frame is a fault, and after a fault nothing more is decoded. The
// owner checks the continuity of sequence numbers, because their meaning depends on the kind.
//
// Use: while next() returns need_more, the owner writes into space() and calls filled(). When next() returns frame,
// header() and message() are valid until the next call of next() or space(). Before that call, the owner consumes all
// of bulk_left(): with take_bulk() for the part in the buffer, and with bulk_read_elsewhere() for the bytes that it has
// received directly into their destination.
class FrameDecoder {
 public:
  enum class Next : uint8_t { need_more, frame, fault };

  explicit FrameDecoder(Sender sender);

  // Returns the buffer for the next bytes; never empty.
  std::span<std::byte> space();
  void filled(size_t bytes);

  Next next();
  const FrameHeader& header() const { return header_; }
  // Returns the message: one Cap'n Proto segment, aligned and not validated.
  kj::ArrayPtr<const capnp::word> message() const;

  uint64_t bulk_left() const { return bulk_left_; }
  // Returns all bytes in the buffer that were not consumed: the beginning of the bulk, and the bytes behind it.
  std::span<const std::byte> buffered() const { return {bytes() + begin_, end_ - begin_}; }
  // Returns the beginning of the bulk, as far as it is in the buffer.
  std::span<const std::byte> buffered_bulk() const;
  void take_bulk(size_t bytes);
  // Counts bytes of the bulk that the owner has received itself. Precondition: buffered_bulk() is empty.
  void bulk_read_elsewhere(size_t bytes);

  bool faulty() const { return !fault_.empty(); }
  // Returns the fault as one phrase for logs and error lines; empty if there is none.
  const std::string& fault() const { return fault_; }
  // Records a fault that the owner has found in a frame, so that fault() returns all kinds of faults.
  void set_fault(std::string reason);

 private:
  bool is_space_short() const { return short_spaces_ != 0 && begin_ == end_ && !header_known_; }
  bool check_header();
  void make_room(size_t bytes);
  void align();

  Sender sender_;
  bool header_known_ = false;
  bool frame_given_ = false;
  // The reads for which space() is short.
  unsigned short_spaces_ = 0;
  FrameHeader header_;
  uint64_t bulk_left_ = 0;
  std::string fault_;

  // The buffer consists of words, for their alignment.
  std::unique_ptr<capnp::word[]> buffer_;
  size_t capacity_ = 0;
  // The buffered bytes that were not consumed.
  size_t begin_ = 0, end_ = 0;
  size_t message_at_ = 0;
  std::byte* bytes() const { return reinterpret_cast<std::byte*>(buffer_.get()); }
};

}  // namespace gpuwire::wire
