// The page that the broker's GPU scheduler shares with one worker: the gate that the GPU scheduler sets, and the
// worker's figures about its work.
//
// Both ends belong to the same build. The worker runs on behalf of a client, so the GPU scheduler trusts no word that
// the worker writes: the word may have any value, and may decrease. False figures of a worker only affect its own
// tenant's account: the gate closes whatever the page contains. The count of completed work decides whether sessions
// run side by side, which costs others no more than a few percent of their share (scheduler/co_run.hpp).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "server/base/shared_page.hpp"
#include "server/gate/page/link_counters.hpp"

namespace gpuwire::server {

// A time of CLOCK_MONOTONIC, which is the same for all processes.
using PageTime = std::chrono::nanoseconds;
inline PageTime page_now() { return std::chrono::steady_clock::now().time_since_epoch(); }

// The values of SessionPage::gate. Zero: all calls pass without counting.
struct GateWord {
  static constexpr uint32_t kClosed = 1u << 0;
  // Submissions are counted and marked; implied by every other bit.
  static constexpr uint32_t kMetered = 1u << 1;
  // Closed, and it may open within a millisecond: a waiting thread should poll.
  static constexpr uint32_t kSoon = 1u << 2;
  static constexpr uint32_t kBoundShift = 8;
  static constexpr uint32_t kBoundMaxUs = (1u << (32 - kBoundShift)) - 1;

  uint32_t word = 0;
  bool unhindered() const { return word == 0; }
  bool closed() const { return (word & kClosed) != 0; }
  bool soon() const { return (word & kSoon) != 0; }
  // The limit of estimated GPU time in flight; zero: no limit.
  std::chrono::microseconds bound() const { return std::chrono::microseconds(word >> kBoundShift); }
  static uint32_t of(bool open, bool metered, std::chrono::nanoseconds bound) {
    // A bound below the smallest value of the word becomes that smallest value, and not zero.
    auto us = uint64_t(std::chrono::ceil<std::chrono::microseconds>(bound).count());
    if (us > kBoundMaxUs) us = kBoundMaxUs;
    return (open ? 0 : kClosed) | (metered || !open || us ? kMetered : 0) | uint32_t(us) << kBoundShift;
  }
};

struct SessionPage {
  // "esspage1".
  static constexpr uint64_t kMagic = 0x3165'6761'7073'7365;
  static constexpr uint32_t kVersion = 4;
  static constexpr const char* kName = "session page";

  // --- written by the GPU scheduler --------------------------------------------------------------------------------
  PageHead head;
  // A GateWord; waiting workers sleep on it (futex).
  std::atomic<uint32_t> gate{0};
  // Incremented before the gate is opened.
  std::atomic<uint32_t> opening{0};
  // Incremented when `gate` has changed, and when the worker wakes its own in-flight tracker, which sleeps on it
  // (futex).
  std::atomic<uint32_t> attention{0};
  // The bound of large copies over the host's link, each direction; zero: no bound.
  std::atomic<uint64_t> copy_bytes_per_ms{0};
  // The time for which the executor may poll for the client's next frame, if its own limit is lower.
  std::atomic<uint32_t> spin_us{0};
  // GPU time charged to the session so far, for the GPU scheduler of a later broker. Zero in a page of an earlier
  // build.
  std::atomic<uint64_t> charged_ns{0};

  // --- written by the worker ---------------------------------------------------------------------------------------
  // 1: a submission waits at the closed gate.
  alignas(64) std::atomic<uint32_t> waiting{0};
  // 1: submitted work may be unfinished.
  std::atomic<uint32_t> in_flight{0};
  // The value of `attention` when the in-flight tracker last acted on `gate`.
  std::atomic<uint32_t> answered{0};
  // The `opening` that first_start belongs to.
  std::atomic<uint32_t> started{0};
  // PageTime: when the first work since that opening began on the GPU.
  std::atomic<int64_t> first_start{0};
  // PageTime: when its last completion was observed; zero: never.
  std::atomic<int64_t> last_end{0};
  // PageTime: since then no progress of the work in flight; zero: none in flight, or not begun.
  std::atomic<int64_t> stuck_since{0};
  // PageTime: since then the executor is idle; zero: it is busy.
  std::atomic<int64_t> idle_since{0};

  // GPU time: sums of first start to drain.
  alignas(64) std::atomic<uint64_t> busy_ns{0};
  // The number of times that work began with nothing in flight.
  std::atomic<uint64_t> bursts{0};
  // The number of counted submissions.
  std::atomic<uint64_t> submissions{0};
  // The number of submissions that were seen done.
  std::atomic<uint64_t> completions{0};
  // Estimated GPU time in flight.
  std::atomic<uint64_t> in_flight_ns{0};
  // Time without work in flight or at the gate, up to quiet_since.
  std::atomic<uint64_t> quiet_ns{0};
  // PageTime: since then the session is quiet; zero: it is not.
  std::atomic<int64_t> quiet_since{0};
  // Submissions that found the gate closed.
  std::atomic<uint64_t> waits{0};
  // The time that they waited there.
  std::atomic<uint64_t> waited_ns{0};
  // The rings of the doorbell; for a GPU scheduler that polls instead of sleeping.
  std::atomic<uint64_t> rings{0};

  alignas(64) LinkCounters link;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace gpuwire::server
