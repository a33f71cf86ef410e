// The sending half of a session's connection.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>

#include "server/replay/replay.hpp"
#include "server/worker/channel.hpp"

namespace gpuwire::server {

// Writes each frame with one call straight from where its parts lie. Any thread; frames do not mix. A client that takes nothing for
// kPeerStallMs, or is gone, makes it drop everything from then on and shuts the socket down, which the executor sees as the end.
class SocketOutbox final : public Outbox {
 public:
  explicit SocketOutbox(Channel& channel) : channel_(channel) {}

  void reply(uint64_t sequence, capnp::MessageBuilder& message, std::span<const std::byte> bulk = {}) override;
  void notice(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message, std::span<const std::byte> bulk = {}) override;
  void control(wire::ControlOrdinal ordinal, capnp::MessageBuilder& message);
  // The client may forget its frames up to `sequence`.
  void acknowledge(uint64_t sequence);

  // No reply leaves from now on: the session is being ended, and a call that is broken off for it must not fail at the client before the client hears why.
  void withhold_replies() { withheld_.store(true, std::memory_order_release); }

  // The sequence of the newest reply; lets the executor find calls that nothing has answered. Relaxed: only meaningful on the thread that
  // sent the reply.
  uint64_t last_reply() const { return last_reply_.load(std::memory_order_relaxed); }

 private:
  void send(wire::FrameHeader& header, capnp::MessageBuilder& message, std::span<const std::byte> bulk);
  void raw(std::span<const std::byte> bytes);
  bool write_all(iovec* parts, size_t count);  // under mutex_

  Channel& channel_;
  std::mutex mutex_;
  bool broken_ = false;           // under mutex_
  uint64_t notice_sequence_ = 0;  // under mutex_
  std::atomic<uint64_t> last_reply_{0};
  // Set by whoever ends the session, before it breaks calls off; acquired by whoever answers one of them.
  std::atomic<bool> withheld_{false};
};

}  // namespace gpuwire::server
