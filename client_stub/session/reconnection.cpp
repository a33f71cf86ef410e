#include "client_stub/session/reconnection.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace gpuwire::client {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

Reconnection::Reconnection(milliseconds grace, std::function<void(const std::string& line)> tell)
    : grace_(grace), tell_(std::move(tell)), random_(unsigned(lost_.time_since_epoch().count())) {}

milliseconds Reconnection::next_delay(Clock::time_point now, const std::string& cause) {
  auto left = duration_cast<milliseconds>(lost_ + grace_ - now);
  if (left.count() <= 0) return milliseconds(-1);
  if (!told_ && now - lost_ >= kTellAfter) {
    told_ = true;
    tell_(fmt::format("the connection was lost ({}); trying for {} s to reconnect", cause, left.count() / 1000));
  }
  // Half of the delay to all of it.
  milliseconds delay(delay_.count() / 2 + random_() % (delay_.count() / 2 + 1));
  delay_ = std::min(delay_ * 2, kDelayMax);
  return std::min(delay, left);
}

std::chrono::nanoseconds Reconnection::succeeded(Clock::time_point now) {
  if (told_)
    tell_(fmt::format("connected again after {:.1f} s; the session goes on",
                      std::chrono::duration<double>(now - lost_).count()));
  return now - lost_;
}

}  // namespace gpuwire::client
