#include "protocol/link/heartbeat.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace gpuwire::link {

Nanoseconds Heartbeat::left(Clock::time_point now) const {
  return std::max(Nanoseconds(0),
                  Nanoseconds(Clock::duration(next_.load(std::memory_order_relaxed)) - now.time_since_epoch()));
}

bool Heartbeat::poll(Clock::time_point now) {
  if (now.time_since_epoch().count() < next_.load(std::memory_order_relaxed)) return false;
  if (!mutex_.try_lock()) return false;
  const MutexLock lock(mutex_, std::adopt_lock);
  next_.store((now + interval_).time_since_epoch().count(), std::memory_order_relaxed);
  auto connection = link_.transport();
  if (link_.state() != Link::State::attached) {
    come_ = {};
    return false;
  }
  Come come{connection, link_.bytes_come(), connection->unread()};
  if (!(come == come_)) {
    come_ = std::move(come);
    silent_polls_ = 0;
  } else if (come.unread < kUnreadBytesMax && ++silent_polls_ >= kSilentPollsMax) {
    come_ = {};
    return link_.give_up(
        *connection,
        fmt::format("nothing has come over it for {} s", silent_polls_ * interval_ / std::chrono::seconds(1)), how_);
  }
  if (link_.bytes_sent() == sent_) {
    link_.append_heartbeat();
    link_.pump();
  }
  sent_ = link_.bytes_sent();
  return false;
}

}  // namespace gpuwire::link
