// Counts the bytes of a session's connection, and periodically queries the kernel for its round-trip time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "protocol/link/link.hpp"
#include "server/gate/page/link_counters.hpp"

namespace gpuwire::server {

// received() and sent() may each be called by one thread at a time. Without counters a call costs one branch.
class LinkMeter {
 public:
  static constexpr int64_t kPollIntervalMs = 1000;

  LinkMeter() = default;
  // Both arguments outlive this object; `counters` may be null.
  LinkMeter(const link::Link& link, LinkCounters* counters) : link_(&link), counters_(counters) {}

  // Counts bytes as the session reads and writes them, without TLS.
  void received(size_t bytes) {
    if (!counters_) return;
    add(counters_->bytes_in, bytes);
    poll_if_due();
  }
  void sent(size_t bytes, bool reply) {
    if (!counters_) return;
    add(counters_->bytes_out, bytes);
    if (reply) add(counters_->replies, 1);
  }

 private:
  // Each word has one writer at a time.
  static void add(std::atomic<uint64_t>& word, uint64_t more) {
    word.store(word.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  // Queries the kernel for the round-trip time, every kPollIntervalMs at most.
  void poll_if_due();

  const link::Link* link_ = nullptr;
  LinkCounters* counters_ = nullptr;
  int64_t next_poll_ms_ = 0;
};

}  // namespace gpuwire::server
