#include "server/worker/connection/link_meter.hpp"

#include <ctime>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace gpuwire::server {

void LinkMeter::poll_if_due() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);  // a few nanoseconds; precise to a tick of the kernel
  int64_t now_ms = int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
  if (now_ms < next_poll_ms_) return;
  next_poll_ms_ = now_ms + kPollIntervalMs;
  auto transport = link_->transport();
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(transport->descriptor(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return;  // not TCP
  uint32_t least = counters_->round_trip_least_us.load(std::memory_order_relaxed);
  counters_->round_trip_us.store(info.tcpi_rtt, std::memory_order_relaxed);
  if (least == 0 || info.tcpi_rtt < least)
    counters_->round_trip_least_us.store(info.tcpi_rtt, std::memory_order_relaxed);
}

}  // namespace gpuwire::server
