// Finds out that a connection leads nowhere although nobody has said so, and shows the other side that it leads to us.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "protocol/link/link.hpp"

namespace gpuwire::link {

// In a session with heartbeats each side checks at this interval whether it has sent or received anything.
inline constexpr std::chrono::milliseconds kHeartbeatInterval{3000};
// A side gives up the connection at the check after this many intervals without a byte from the peer; the last byte may
// be one interval older.
inline constexpr unsigned kSilentPollsMax = 3;
// With this many unread bytes, this side's own system may keep the peer silent, and the connection is not judged.
inline constexpr size_t kUnreadBytesMax = 16u << 10;

// Checks a link once in an interval. If nothing was sent since the last check, it sends a heartbeat. If nothing arrived
// in kSilentPollsMax checks, it gives up the connection. It counts checks instead of time, so that a process that was
// stopped, or had no core, does not judge its peer for that interval. Bytes count when they are on this machine, so the
// receiving thread may be busy. Only for links that outlive their connections, when both sides support heartbeats.
//
// Any thread may check at any time; one at a time does.
class Heartbeat {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Heartbeat(Link& link, GivingUp how, Clock::duration interval = kHeartbeatInterval)
      : link_(link), how_(how), interval_(interval) {}

  // Does nothing before the next look is due. True: the connection was given up.
  bool poll(Clock::time_point now);
  // Until the next look is due.
  Nanoseconds left(Clock::time_point now) const;

 private:
  // The received bytes of a connection; two unequal values show that something has arrived.
  struct Come {
    std::weak_ptr<transport::Transport> connection;  // an address may be another connection's soon
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
  std::atomic<Clock::rep> next_{
      0};             // since the clock's beginning; only compared, and its subject is under the mutex: relaxed
  std::mutex mutex_;  // the link's locks are taken with it
  Come come_;
  unsigned silent_polls_ = 0;
  uint64_t sent_ = 0;
};

}  // namespace gpuwire::link
