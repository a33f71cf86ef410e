// Heartbeat detects a connection that has failed without an error, and sends the heartbeats that show the peer that
// this side is alive.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "protocol/link/link.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::link {

// In a session with heartbeats, each side checks at this interval whether it has sent or received anything.
inline constexpr std::chrono::milliseconds kHeartbeatInterval{3000};
// A side gives up the connection after this many intervals without a byte from the peer. The last byte may be one
// interval older.
inline constexpr unsigned kSilentPollsMax = 3;
// While this many received bytes are unread, this side's flow control may prevent the peer from sending, so the check
// does not count.
inline constexpr size_t kUnreadBytesMax = 16u << 10;

// Heartbeat checks a link once in an interval. It sends a heartbeat if this side has sent nothing since the last check.
// It gives up the connection if nothing has arrived in kSilentPollsMax checks. Heartbeat counts checks instead of time,
// so that a process that was stopped, or had no core, does not count that time against its peer. Bytes count when they
// have arrived on this machine, so a busy receiving thread does no harm. Heartbeat is only for links that outlive their
// connections, and only if both sides support heartbeats.
//
// Thread: any. If two threads check at the same time, one of them does the check.
class Heartbeat {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Heartbeat(Link& link, GivingUp how, Clock::duration interval = kHeartbeatInterval)
      : link_(link), how_(how), interval_(interval) {}

  // Does nothing before the next check is due. Returns true if the connection was given up.
  bool poll(Clock::time_point now);
  // Returns the time until the next check is due.
  Nanoseconds left(Clock::time_point now) const;

 private:
  // Received bytes of one connection. Two unequal values show that bytes have arrived.
  struct Come {
    // A weak pointer and not an address, because a later connection may have the same address.
    std::weak_ptr<transport::Transport> connection;
    uint64_t received = 0;
    size_t unread = 0;
    bool operator==(const Come& other) const {
      return !connection.owner_before(other.connection) && !other.connection.owner_before(connection) &&
             received == other.received && unread == other.unread;
    }
  };

  Link& link_;
  const GivingUp how_;
  const Clock::duration interval_;
  // Time since the epoch of Clock. Relaxed, because the value is only compared; mutex_ guards the check itself.
  std::atomic<Clock::rep> next_{0};
  // Lock: taken before the link's locks.
  Mutex mutex_;
  Come come_ GUARDED_BY(mutex_);
  unsigned silent_polls_ GUARDED_BY(mutex_) = 0;
  uint64_t sent_ GUARDED_BY(mutex_) = 0;
};

}  // namespace gpuwire::link
