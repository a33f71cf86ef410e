// When a session's bulk is worth further connections, and how it gets them, without any call waiting for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <thread>

#include "client_stub/session/reconnection.hpp"
#include "protocol/link/link.hpp"

namespace gpuwire::client {

// GPUWIRE_LANES, or the number that this process's cores allow over a connection of this kind (Transport::road()).
// Below 2: no lanes.
unsigned lanes_wanted(std::string_view road);

// Opens all lanes one after the other, on a thread of its own that ends with that. A failure costs nothing but another
// attempt later.
class LaneOpener {
 public:
  // Bulk that has passed the connection itself before lanes are opened, also after they were lost.
  static constexpr uint64_t kBulkBytesMin = 4u << 20;
  // How much more with each failure, as a power of two.
  static constexpr unsigned kFailuresCounted = 8;

  // Both outlive it. `lanes`: at least 2.
  LaneOpener(link::Link& link, Reconnector& reconnector, unsigned lanes)
      : link_(link), reconnector_(reconnector), lanes_(lanes) {}
  // Waits for an attempt that is under way, at most as long as connecting takes.
  ~LaneOpener();
  LaneOpener(const LaneOpener&) = delete;
  LaneOpener& operator=(const LaneOpener&) = delete;

  // Begins if that pays now. Any thread; a few loads where there is nothing to do.
  void poll() noexcept;
  // No more are opened. Does not wait.
  void stop() noexcept { stopping_.store(true, std::memory_order_relaxed); }

 private:
  void begin() noexcept;
  void open() noexcept;
  bool open_all();

  link::Link& link_;
  Reconnector& reconnector_;
  const unsigned lanes_;
  std::mutex mutex_;  // over starting the thread; the link's locks are taken with it
  std::thread thread_;
  // Used by the thread; one comes after the other.
  uint32_t set_ = 0;
  unsigned failures_ = 0;
  // The amount of bulk that must have passed the connection. Written by the thread that lowers open_, before it does
  // so; read as a hint, so relaxed is enough.
  std::atomic<uint64_t> worth_from_{kBulkBytesMin};
  std::atomic<bool> opening_{false};   // release when the thread has done, acquire before another one
  std::atomic<bool> stopping_{false};  // relaxed: looked at between two lanes
};

}  // namespace gpuwire::client
