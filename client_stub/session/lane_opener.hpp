// Opens further connections for a session's bulk when they are worthwhile. No call waits for them.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <thread>

#include "client_stub/session/reconnection.hpp"
#include "protocol/link/link.hpp"

namespace gpuwire::client {

// GPUWIRE_LANES, or the number of lanes that this process's cores allow over a connection of this kind
// (Transport::road()). Below 2: no lanes.
unsigned lanes_wanted(std::string_view road);

// Opens all lanes in sequence, on a thread of its own that ends afterwards. A failure only causes another attempt
// later.
class LaneOpener {
 public:
  // The bulk that passes the connection itself before lanes are opened, also after the loss of earlier lanes.
  static constexpr uint64_t kBulkBytesMin = 4u << 20;
  // Each failure doubles the bulk, up to this number of times.
  static constexpr unsigned kFailuresCounted = 8;

  // `link` and `reconnector` outlive the object. `lanes`: at least 2.
  LaneOpener(link::Link& link, Reconnector& reconnector, unsigned lanes)
      : link_(link), reconnector_(reconnector), lanes_(lanes) {}
  // Waits for an attempt in progress, at most as long as connecting takes.
  ~LaneOpener();
  LaneOpener(const LaneOpener&) = delete;
  LaneOpener& operator=(const LaneOpener&) = delete;

  // Begins if lanes are worthwhile now. Thread: any. Costs a few loads otherwise.
  void poll() noexcept;
  // Opens no further lanes. Does not wait.
  void stop() noexcept { stopping_.store(true, std::memory_order_relaxed); }

 private:
  void begin() noexcept;
  void open() noexcept;
  bool open_all();

  link::Link& link_;
  Reconnector& reconnector_;
  const unsigned lanes_;
  // Over starting the thread; the link's locks are taken with it.
  std::mutex mutex_;
  std::thread thread_;
  // Used by the thread; one comes after the other.
  uint32_t set_ = 0;
  unsigned failures_ = 0;
  // The amount of bulk that must have passed the connection. Written by the thread that lowers open_, before it does
  // so; read as a hint, so relaxed is enough.
  std::atomic<uint64_t> worth_from_{kBulkBytesMin};
  // Release when the thread has done, acquire before another one.
  std::atomic<bool> opening_{false};
  // Relaxed: read between two lanes.
  std::atomic<bool> stopping_{false};
};

}  // namespace gpuwire::client
