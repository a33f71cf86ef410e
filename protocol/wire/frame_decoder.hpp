// Cuts the bytes of a connection into frames. Knows no connection: the owner puts bytes in and takes frames out, so
// that any cut of the bytes into pieces, and any bytes at all, can be tried without one.
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

// The sender of the decoded frames, which determines the allowed kinds.
enum class Sender : uint8_t { client, server };

// Decodes the frames of one direction. An invalid frame is a fault, and after a fault nothing more is decoded. The
// owner checks the continuity of sequence numbers, since their meaning depends on the kind.
//
// Use: while next() returns need_more, write into space() and call filled(). When it returns frame, header() and
// message() are valid until the next call of next() or space(). Before that call all of bulk_left() has to be consumed,
// by take_bulk() for the part in the buffer and by bulk_read_elsewhere() for the bytes that the owner received straight
// into their destination.
class FrameDecoder {
 public:
  enum class Next : uint8_t { need_more, frame, fault };

  explicit FrameDecoder(Sender sender);

  // Room for the next bytes, never empty.
  std::span<std::byte> space();
  void filled(size_t bytes);

  Next next();
  const FrameHeader& header() const { return header_; }
  // One Cap'n Proto segment, aligned; not looked into yet.
  kj::ArrayPtr<const capnp::word> message() const;

  uint64_t bulk_left() const { return bulk_left_; }
  // All bytes in the buffer that have not been taken out: the beginning of the bulk, and the bytes behind it.
  std::span<const std::byte> buffered() const { return {bytes() + begin_, end_ - begin_}; }
  // The beginning of the bulk, as far as it has arrived here.
  std::span<const std::byte> buffered_bulk() const;
  void take_bulk(size_t bytes);
  // Bytes of the bulk that the owner has received itself; only when buffered_bulk() is empty.
  void bulk_read_elsewhere(size_t bytes);

  bool faulty() const { return !fault_.empty(); }
  // One phrase for logs and error lines; empty while there is no fault.
  const std::string& fault() const { return fault_; }
  // For faults that the owner finds in a frame, so that there is one place to ask.
  void set_fault(std::string reason);

 private:
  bool check_header();
  void make_room(size_t bytes);
  void align();

  Sender sender_;
  bool header_known_ = false;
  bool frame_given_ = false;
  FrameHeader header_;
  uint64_t bulk_left_ = 0;
  std::string fault_;

  std::unique_ptr<capnp::word[]> buffer_;  // words, for their alignment
  size_t capacity_ = 0;
  size_t begin_ = 0, end_ = 0;  // the buffered bytes that are not consumed
  size_t message_at_ = 0;
  std::byte* bytes() const { return reinterpret_cast<std::byte*>(buffer_.get()); }
};

}  // namespace gpuwire::wire
