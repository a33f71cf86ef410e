// The page that the broker's GPU scheduler shares with one worker: the gate that the GPU scheduler sets, and the
// worker's figures about its work.
//
// Both ends are of one build. The worker runs on behalf of a client, so the GPU scheduler trusts no word of the
// worker's: it may be any number, and may go back. A worker that lies about its own work harms the account of its own
// tenant only: the gate closes whatever the page contains. The count of completed work decides whether sessions run
// side by side, which costs others no more than a few percent of their share (scheduler/co_run.hpp).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "server/base/shared_page.hpp"
#include "server/gate/page/link_counters.hpp"

namespace gpuwire::server {

// CLOCK_MONOTONIC, which is one for all processes.
using PageTime = std::chrono::nanoseconds;
inline PageTime page_now() { return std::chrono::steady_clock::now().time_since_epoch(); }

// The values of SessionPage::gate. Zero: everything passes and nothing is counted.
struct GateWord {
  static constexpr uint32_t kClosed = 1u << 0;
  static constexpr uint32_t kMetered = 1u << 1;  // submissions are counted and marked; implied by every other bit
  static constexpr uint32_t kSoon =
      1u << 2;  // closed, and it may open within a millisecond: a waiting thread need not fall asleep
  static constexpr uint32_t kBoundShift = 8;
  static constexpr uint32_t kBoundMaxUs = (1u << (32 - kBoundShift)) - 1;

  uint32_t word = 0;
  bool unhindered() const { return word == 0; }
  bool closed() const { return (word & kClosed) != 0; }
  bool soon() const { return (word & kSoon) != 0; }
  // How much estimated GPU time may be in flight at once; zero: no bound.
  std::chrono::microseconds bound() const { return std::chrono::microseconds(word >> kBoundShift); }
  static uint32_t of(bool open, bool metered, std::chrono::nanoseconds bound) {
    // A bound below the smallest value of the word is that smallest value, and not none.
    auto us = uint64_t(std::chrono::ceil<std::chrono::microseconds>(bound).count());
    if (us > kBoundMaxUs) us = kBoundMaxUs;
    return (open ? 0 : kClosed) | (metered || !open || us ? kMetered : 0) | uint32_t(us) << kBoundShift;
  }
};

struct SessionPage {
  static constexpr uint64_t kMagic = 0x3165'6761'7073'7365;  // "esspage1"
  static constexpr uint32_t kVersion = 4;
  static constexpr const char* kName = "session page";

  // --- written by the GPU scheduler --------------------------------------------------------------------------------
  PageHead head;
  std::atomic<uint32_t> gate{0};       // a GateWord; workers that wait sleep on it (futex)
  std::atomic<uint32_t> opening{0};    // grows before the gate is opened
  std::atomic<uint32_t> attention{0};  // grows when `gate` has changed, and when the worker calls its own in-flight
                                       // tracker, which sleeps on it (futex)
  std::atomic<uint64_t> copy_bytes_per_ms{0};  // of large copies over the host's link, each direction; zero: no bound
  std::atomic<uint32_t> spin_us{
      0};  // how long the executor may look for the client's next frame without sleeping, if its own time is less
  // GPU time charged to the session so far, for a GPU scheduler that follows. A page of an earlier build says zero.
  std::atomic<uint64_t> charged_ns{0};

  // --- written by the worker ---------------------------------------------------------------------------------------
  alignas(64) std::atomic<uint32_t> waiting{0};  // 1: a submission stands at the closed gate
  std::atomic<uint32_t> in_flight{0};            // 1: submitted work that is not known to be done
  std::atomic<uint32_t> answered{0};    // the value of `attention` when the in-flight tracker last acted on `gate`
  std::atomic<uint32_t> started{0};     // the `opening` that first_start belongs to
  std::atomic<int64_t> first_start{0};  // PageTime: when the first work since that opening began on the GPU
  std::atomic<int64_t> last_end{0};     // PageTime: when the last of its work was seen done; zero: never
  std::atomic<int64_t> stuck_since{
      0};  // PageTime: the work in flight has made no progress since; zero: there is none, or it has not begun
  std::atomic<int64_t> idle_since{0};  // PageTime: the executor has had nothing to do since; zero: it has

  alignas(64) std::atomic<uint64_t> busy_ns{0};  // GPU time: sums of first start to drain
  std::atomic<uint64_t> bursts{0};               // times that it went from nothing in flight to something
  std::atomic<uint64_t> submissions{0};          // of those that were counted
  std::atomic<uint64_t> completions{0};          // of submissions: seen done
  std::atomic<uint64_t> in_flight_ns{0};         // estimated GPU time in flight
  std::atomic<uint64_t> quiet_ns{0};    // time with nothing in flight and nothing at the gate, up to quiet_since
  std::atomic<int64_t> quiet_since{0};  // PageTime: it is quiet since; zero: it is not
  std::atomic<uint64_t> waits{0};       // submissions that found the gate closed
  std::atomic<uint64_t> waited_ns{0};   // how long they stood there
  std::atomic<uint64_t> rings{0};       // of the doorbell; for a GPU scheduler that looks instead of sleeping

  alignas(64) LinkCounters link;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace gpuwire::server
