#include "client_stub/session/reconnection.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "protocol/units/duration.hpp"

namespace gpuwire::client {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

Reconnection::Reconnection(const Graces& graces, std::string loss, std::function<void(const std::string& line)> notify)
    : graces_(graces),
      loss_(std::move(loss)),
      notify_(std::move(notify)),
      random_(unsigned(lost_.time_since_epoch().count())) {}

milliseconds Reconnection::next_delay(Clock::time_point now, const std::string& cause) {
  auto left = duration_cast<milliseconds>(lost_ + graces_.tried - now);
  if (left.count() <= 0) return milliseconds(-1);
  if (!notified_ && now - lost_ >= kNotifyAfter) {
    notified_ = true;
    // The line has the server's kind of loss and its deadline. The server may know more about the loss, so this side
    // tries for longer.
    const auto told = duration_cast<milliseconds>(lost_ + graces_.told - now);
    const std::string lost = fmt::format("{}{}{}", loss_, cause == loss_ ? "" : "; now: ", cause == loss_ ? "" : cause);
    if (told.count() >= 1000)
      notify_(fmt::format("the connection was lost ({}); trying for {} s to reconnect", lost,
                          std::min(told, left).count() / 1000));
    else
      notify_(
          fmt::format("the connection was lost ({}); trying to reconnect, but the server keeps the session for {} "
                      "only",
                      lost, units::seconds_text(uint64_t(graces_.told.count()))));
  }
  // Between half of the delay and all of it.
  milliseconds delay(delay_.count() / 2 + random_() % (delay_.count() / 2 + 1));
  delay_ = std::min(delay_ * 2, kDelayMax);
  return std::min(delay, left);
}

std::chrono::nanoseconds Reconnection::succeeded(Clock::time_point now) {
  if (notified_ && !std::exchange(notified_found_, true))
    notify_(fmt::format("connected again after {:.1f} s; the session goes on",
                        std::chrono::duration<double>(now - lost_).count()));
  return now - std::exchange(found_, now);
}

}  // namespace gpuwire::client
