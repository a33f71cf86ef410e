#include "server/worker/link_meter.hpp"

#include <ctime>
#include <limits>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace gpuwire::server {

void LinkMeter::look_if_due() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);  // a few nanoseconds; precise to a tick of the kernel
  int64_t now_ms = int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
  int64_t due_ms = next_look_ms_->load(std::memory_order_relaxed);
  if (now_ms < due_ms || !next_look_ms_->compare_exchange_strong(due_ms, now_ms + kLookIntervalMs, std::memory_order_relaxed)) return;
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(socket_, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) {
    next_look_ms_->store(std::numeric_limits<int64_t>::max(), std::memory_order_relaxed);  // not TCP: there is nothing to ask
    return;
  }
  uint32_t least = counters_->round_trip_least_us.load(std::memory_order_relaxed);
  counters_->round_trip_us.store(info.tcpi_rtt, std::memory_order_relaxed);
  if (least == 0 || info.tcpi_rtt < least) counters_->round_trip_least_us.store(info.tcpi_rtt, std::memory_order_relaxed);
}

}  // namespace gpuwire::server
