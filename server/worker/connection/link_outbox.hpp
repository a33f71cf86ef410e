// The sending half of a session's link.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "protocol/link/link.hpp"
#include "server/replay/replay.hpp"
#include "server/worker/connection/link_meter.hpp"

namespace gpuwire::server {

// Appends each frame to the link and sends it on the calling thread, unless another thread is sending. Any thread;
// frames are not interleaved. While the client reads nothing, or there is no connection, frames stay in the link's
// window, and a thread that finds the window full waits.
class LinkOutbox final : public Outbox {
 public:
  // The outbox's requests to its session.
  struct Hooks {
    // Called when a thread begins to wait for room: acknowledgements must then be read even while the executor is
    // blocked. Any thread.
    std::function<void()> room_wanted = [] {};
    // Returns whether the calling thread reads acknowledgements: such a thread must not wait for room itself.
    std::function<bool()> reads_ahead = [] { return false; };
  };
  LinkOutbox(link::Link& link, LinkMeter& meter, Hooks hooks) : link_(link), meter_(meter), hooks_(std::move(hooks)) {}
  LinkOutbox(link::Link& link, LinkMeter& meter) : LinkOutbox(link, meter, Hooks{}) {}

  void reply(uint64_t sequence, capnp::MessageBuilder& message, std::span<const std::byte> bulk = {}) override;
  void notice(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message,
              std::span<const std::byte> bulk = {}) override;
  void reply_kept(uint64_t sequence, capnp::MessageBuilder& message, std::span<const std::byte> bulk,
                  std::shared_ptr<const void> keeper) override;
  void notice_kept(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message, std::span<const std::byte> bulk,
                   std::shared_ptr<const void> keeper) override;
  void control(wire::ControlOrdinal ordinal, capnp::MessageBuilder& message);
  // Acknowledges the client's bytes up to `position` if they are enough for a report, or at once with `now`. Executor.
  void acknowledge(uint64_t position, bool now = false) {
    if (uint64_t end = link_.consumed(position, now)) [[unlikely]]
      push(end);
  }

  // Suppresses all replies from now on: the session is ending, and a call that is aborted for this reason must not fail
  // at the client before the client gets the reason.
  void withhold_replies() { withheld_.store(true, std::memory_order_release); }

  // Returns the sequence of the newest reply, by which the executor finds calls without an answer. Relaxed: the value
  // is only meaningful on the thread that sent the reply.
  uint64_t last_reply() const { return last_reply_.load(std::memory_order_relaxed); }
  // Returns whether a thread waits for room.
  bool room_awaited() const { return room_waiters_.load(std::memory_order_relaxed) != 0; }

 private:
  void send(wire::FrameHeader& header, capnp::MessageBuilder& message, std::span<const std::byte> bulk,
            std::shared_ptr<const void> keeper);
  // Waits for room and returns it with the link's lock held. Returns null, without the lock, if the session is over.
  std::byte* wait_for_room(size_t bytes, size_t external_bytes, bool last_words);
  void push(uint64_t position);

  link::Link& link_;
  LinkMeter& meter_;
  const Hooks hooks_;
  // Lock: the link's.
  uint64_t notice_sequence_ = 0;
  std::atomic<uint64_t> last_reply_{0};
  // A hint for the thread that reads ahead, which checks again before it sleeps; the hook behind the change wakes it.
  std::atomic<unsigned> room_waiters_{0};
  // Set by the thread that ends the session, before it aborts calls; acquired by a thread that answers such a call.
  std::atomic<bool> withheld_{false};
};

}  // namespace gpuwire::server
