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

// In a session with heartbeats each side looks so often whether it has sent or heard anything.
inline constexpr std::chrono::milliseconds kHeartbeatInterval{3000};
// From the last byte of the peer's to the look that gives its connection up there are at most so many of these, and one
// more.
inline constexpr unsigned kSilentLooksMax = 3;
// With so many bytes that nobody here has received, our own system may be what keeps the peer silent, and the
// connection is not judged.
inline constexpr size_t kUnreadBytesMax = 16u << 10;

// Looks at a link once in an interval. Nothing sent since the look before: a heartbeat is. Nothing come in
// kSilentLooksMax looks: the connection is given up. Looks are counted and not time, so a process that was stopped, or
// had no core, judges nobody for what it has not seen itself; and bytes count when they are on this machine, so whoever
// should receive them may be busy. Only for links that outlive their connections, when both sides have said that they
// know heartbeats.
//
// Any thread may look at any time; one at a time does.
class Heartbeat {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Heartbeat(Link& link, GivingUp how, Clock::duration interval = kHeartbeatInterval)
      : link_(link), how_(how), interval_(interval) {}

  // Does nothing before the next look is due. True: the connection was given up.
  bool look(Clock::time_point now);
  // Until the next look is due.
  Nanoseconds left(Clock::time_point now) const;

 private:
  // What has come on a connection; two that differ say that something has.
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
      0};             // since the clock's beginning; only compared, what it is about is under the mutex: relaxed
  std::mutex mutex_;  // the link's locks are taken with it
  Come come_;
  unsigned silent_looks_ = 0;
  uint64_t sent_ = 0;
};

}  // namespace gpuwire::link
