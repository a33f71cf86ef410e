// The receiving half of a session's connection: bytes in, checked frames and their bulk out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "protocol/wire/frame_decoder.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::server {

// Reads a connected stream socket. One thread only (the executor). Does not own the descriptor.
class FrameSource final : public BulkReader {
 public:
  // `wake`: a descriptor that, once readable, ends every wait. `spin_us`: how long to look at the socket after the last bytes before
  // sleeping in the kernel.
  FrameSource(int socket, int wake, uint32_t spin_us) : socket_(socket), wake_(wake), spin_us_(spin_us), decoder_(wire::Sender::client) {}

  enum class Next : uint8_t {
    frame,
    ended,  // the connection is closed or cut, or `wake` is readable
    fault,  // bytes that cannot be a frame: fault() says why. Nothing after them can be read
    late,   // the deadline has passed
  };
  // Waits for the next frame; what is left of the previous one's bulk is thrown away first. `deadline_ms` < 0: no limit.
  Next next(int deadline_ms = -1);

  // Of the frame that next() gave; valid until it is called again.
  const wire::FrameHeader& header() const { return decoder_.header(); }
  kj::ArrayPtr<const capnp::word> message() const { return decoder_.message(); }
  const std::string& fault() const { return decoder_.fault(); }

  // Has the client sent anything beyond the frame (and bulk) in hand? Costs one system call at most.
  bool input_pending() const;

  uint64_t remaining() const override { return decoder_.bulk_left(); }
  bool read(std::span<std::byte> out) override;
  // A read was broken off: the frame in hand has not got all of its bulk.
  bool broken() const { return broken_; }

 private:
  enum class Filled : uint8_t { some, ended, late };
  bool wait_readable(int timeout_ms);  // false: woken
  Filled fill(int deadline_ms);
  bool discard_bulk();

  const int socket_;
  const int wake_;
  const uint32_t spin_us_;
  wire::FrameDecoder decoder_;
  bool broken_ = false;
  uint64_t buffered_ = 0;  // bytes that the decoder holds beyond what has been taken out of it
};

}  // namespace gpuwire::server
