// Frames from a connection: the decoder of protocol/wire fed by a transport or a link. Used by both sides; one thread
// at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "protocol/transport/transport.hpp"
#include "protocol/wire/frame_decoder.hpp"

namespace gpuwire::transport {

enum class Received : uint8_t {
  frame,    // header(), message() and the bulk functions are for it, until the next try_next() or next()
  nothing,  // no whole frame yet
  ended,    // closed or failed: reason()
  fault,    // the peer sent invalid bytes: reason()
};

class FrameReceiver {
 public:
  FrameReceiver(ByteSource& source, wire::Sender sender) : source_(source), decoder_(sender) {}

  // How long a wait for more bulk looks for it before it sleeps. Before the first frame; at the beginning: not at all.
  void poll_for_bulk(Nanoseconds time) { poll_ = time; }

  // Bulk that the owner has left of the last frame is thrown away first (that may wait, see read_bulk()).
  // Does not wait for a frame.
  Received try_next();
  // Waits at most `timeout`.
  Received next(Nanoseconds timeout);

  const wire::FrameHeader& header() const { return decoder_.header(); }
  kj::ArrayPtr<const capnp::word> message() const { return decoder_.message(); }

  // Bytes of the frame's bulk that have not been read.
  uint64_t bulk_left() const { return decoder_.bulk_left(); }
  // Fills `out` from the bulk, waiting as long as the connection lives: straight from the connection except for bytes
  // that were already buffered. False: the call asked for more than bulk_left(), or the connection ended: reason().
  bool read_bulk(std::span<std::byte> out);
  bool skip_bulk();

  // The connection has ended; frames that arrived before may still come from next().
  bool ended() const { return ended_; }
  const std::string& reason() const { return decoder_.faulty() ? decoder_.fault() : reason_; }
  // A fault that the owner found in the frame.
  void set_fault(std::string reason) { decoder_.set_fault(std::move(reason)); }
  uint64_t bytes_received() const { return bytes_received_; }

 private:
  bool receive_some(std::span<std::byte> out, size_t& got);
  void end(const IoResult& result);

  ByteSource& source_;
  wire::FrameDecoder decoder_;
  Nanoseconds poll_{0};
  bool ended_ = false;
  std::string reason_;
  uint64_t bytes_received_ = 0;
};

}  // namespace gpuwire::transport
