// FrameReceiver decodes frames (protocol/wire) from a transport or a link. Both ends use it. Thread: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "protocol/transport/transport.hpp"
#include "protocol/wire/frame_decoder.hpp"

namespace gpuwire::transport {

enum class Received : uint8_t {
  // A frame has arrived. header(), message() and the bulk functions describe it until the next try_next() or next().
  frame,
  nothing,  // no complete frame yet
  ended,    // the connection was closed or has failed; see reason()
  fault,    // the peer sent invalid bytes; see reason()
};

class FrameReceiver {
 public:
  FrameReceiver(ByteSource& source, wire::Sender sender) : source_(source), decoder_(sender) {}

  // Sets how long a wait for more bulk polls before it sleeps; initially 0. Called before the first frame.
  void poll_for_bulk(Nanoseconds time) { poll_ = time; }

  // Returns the next frame without waiting for it. First discards the bulk of the last frame that the owner has not
  // read, which may wait like read_bulk().
  Received try_next();
  // Waits at most `timeout` for the next frame.
  Received next(Nanoseconds timeout);

  const wire::FrameHeader& header() const { return decoder_.header(); }
  kj::ArrayPtr<const capnp::word> message() const { return decoder_.message(); }

  // Returns the number of bytes of the frame's bulk that have not been read.
  uint64_t bulk_left() const { return decoder_.bulk_left(); }
  // Fills `out` from the frame's bulk, and waits as long as the connection lives. Bytes that are not buffered already
  // are received directly into `out`. Returns false if `out` is longer than bulk_left(), or if the connection ended;
  // see reason().
  bool read_bulk(std::span<std::byte> out);
  bool skip_bulk();

  // Returns true if the connection has ended. next() may still return frames that arrived before.
  bool ended() const { return ended_; }
  const std::string& reason() const { return decoder_.faulty() ? decoder_.fault() : reason_; }
  // Records a fault that the owner found in the frame.
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
