// A scripted server: a thread that answers a session's frames. It checks that sequence numbers have no gap.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include <capnp/message.h>

#include "protocol/transport/frame_receiver.hpp"
#include "protocol/transport/transport.hpp"
#include "protocol/wire/ordinals.hpp"

namespace gpuwire::test {

class FakeServer {
 public:
  // `serve` runs on the server's thread after the handshake from `begins` on; the connection is closed when it returns.
  using Serve = std::function<void(FakeServer&)>;
  enum class Begins { with_prefaces, with_hello };
  FakeServer(std::unique_ptr<transport::Transport> transport, Serve serve, Begins begins = Begins::with_prefaces);
  ~FakeServer() { join(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  // Reads the client's next frame that is no acknowledgement. Returns false if the client has closed the connection (or
  // sent Goodbye, then sent_goodbye()).
  bool next();
  const wire::FrameHeader& header() const { return receiver_.header(); }
  kj::ArrayPtr<const capnp::word> message() const { return receiver_.message(); }
  std::vector<std::byte> bulk();
  void skip_bulk() { receiver_.skip_bulk(); }
  bool sent_goodbye() const { return goodbye_; }
  // Whether each client frame had the next sequence number.
  bool sequences_ok() const { return sequences_ok_; }
  uint64_t last_sequence() const { return last_sequence_; }
  // The positions in the client's stream before and after the present frame with its bulk.
  uint64_t frame_begin() const { return frame_begin_; }
  uint64_t frame_end() const { return frame_end_; }
  // Bytes that the server has sent since its first frame.
  uint64_t sent_bytes() const { return sent_bytes_; }
  uint64_t client_acknowledged() const { return client_acknowledged_; }

  void reply(uint64_t sequence, int32_t result = 0, std::span<const std::byte> bulk = {});
  void reply(uint64_t sequence, capnp::MessageBuilder& message, std::span<const std::byte> bulk = {});
  void notice(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message, std::span<const std::byte> bulk = {});
  void acknowledge(uint64_t position);
  void send_header(const wire::FrameHeader& header);
  void send_raw(std::span<const std::byte> bytes);
  // The number of the client's heartbeats.
  unsigned heartbeats() const { return heartbeats_; }
  // If not 0, next() acknowledges all earlier frames at every so manieth frame.
  unsigned acknowledge_every = 256;
  transport::Transport& connection() { return *transport_; }

 private:
  bool exchange_prefaces();
  bool receive();  // the next frame of any kind
  bool answer_control();
  bool welcome();
  void send(wire::FrameHeader header, capnp::MessageBuilder& message, std::span<const std::byte> bulk);

  std::unique_ptr<transport::Transport> transport_;
  transport::FrameReceiver receiver_;
  std::atomic<unsigned> heartbeats_{0};
  bool goodbye_ = false, sequences_ok_ = true;
  uint64_t last_sequence_ = 0, client_acknowledged_ = 0, notices_sent_ = 0, frame_begin_ = 0, frame_end_ = 0,
           sent_bytes_ = 0;
  std::thread thread_;
};

}  // namespace gpuwire::test
