// Counts what passes a session's connection, and asks the kernel for its round trip now and then.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <sys/types.h>

#include "server/worker/link_counters.hpp"

namespace gpuwire::server {

// One thread may call received() while another calls sent() and replied(). Without counters it costs a branch.
class LinkMeter {
 public:
  static constexpr int64_t kLookIntervalMs = 1000;

  LinkMeter() = default;
  // `counters` outlives it, or is null.
  LinkMeter(int socket, LinkCounters* counters) : socket_(socket), counters_(counters), next_look_ms_(std::make_unique<std::atomic<int64_t>>(0)) {}

  // What receiving and sending returned, errors included.
  void received(ssize_t bytes) {
    if (counters_ && bytes > 0) count(counters_->bytes_in, bytes);
  }
  void sent(ssize_t bytes) {
    if (counters_ && bytes > 0) count(counters_->bytes_out, bytes);
  }
  void replied() {
    if (counters_) add(counters_->replies, 1);
  }

 private:
  // Each word has one writer at a time.
  static void add(std::atomic<uint64_t>& word, uint64_t more) { word.store(word.load(std::memory_order_relaxed) + more, std::memory_order_relaxed); }
  void count(std::atomic<uint64_t>& word, ssize_t bytes) {
    add(word, uint64_t(bytes));
    look_if_due();
  }
  void look_if_due();

  int socket_ = -1;
  LinkCounters* counters_ = nullptr;
  // Both threads look; whoever moves it on asks the kernel. It publishes nothing, so relaxed.
  std::unique_ptr<std::atomic<int64_t>> next_look_ms_;
};

}  // namespace gpuwire::server
