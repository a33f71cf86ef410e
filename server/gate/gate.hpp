// The gate of one session: calls that give the GPU work pass it, or wait until the GPU scheduler opens it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "server/gate/copy_budget.hpp"
#include "server/gate/in_flight_tracker.hpp"
#include "server/gate/page/session_page.hpp"
#include "server/gate/work.hpp"

namespace gpuwire::server {

struct DriverTable;

struct GateParts {
  // Outlives the gate.
  SessionPage* page = nullptr;
  // An eventfd of the GPU scheduler; -1: no notification.
  int doorbell = -1;
  // The table behind the gate; outlives it.
  const DriverTable* driver = nullptr;
  // The number that the process may run on.
  unsigned cores = 1;
};

// The gate delays only the thread that called enter_executor(), outside of Unasked. All other threads pass and are
// counted, since work in flight may wait for them.
class Gate {
 public:
  // Starts the in-flight tracker's thread.
  explicit Gate(GateParts parts);
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { stop(); }

  const DriverTable& driver() const { return *parts_.driver; }

  // --- around driver calls (generated code) ------------------------------------------------------------------------
  // Two loads decide that the call passes without counting.
  bool unhindered() const {
    return word_.load(std::memory_order_relaxed)->load(std::memory_order_relaxed) == 0 && !tracker_.captures();
  }
  template <class Call>
  CUresult submit(const Work& work, Call&& call) {
    Passage passage = enter(work);
    if (passage == Passage::refused) return CUDA_ERROR_SYSTEM_NOT_READY;
    CUresult result = call();
    if (passage == Passage::counted) leave(work, result == CUDA_SUCCESS);
    return result;
  }
  template <class Call>
  CUresult begins_capture(CUstream stream, Call&& call) {
    CUresult result = tracker_.begin_capture(stream, call);
    if (parked_.load(std::memory_order_seq_cst)) call_meter();
    return result;
  }
  template <class Call>
  CUresult ends_capture(CUstream stream, Call&& call) {
    return tracker_.end_capture(stream, call);
  }
  template <class Call>
  CUresult ends_stream(CUstream stream, Call&& call) {
    return tracker_.end_stream(stream, call);
  }
  template <class Call>
  CUresult enters_context(CUcontext context, Call&& call) {
    tracker_.enter_context(context);
    return call();
  }
  // These calls block while kernels of the context run.
  template <class Call>
  CUresult ends_context(CUcontext context, Call&& call) {
    return end({.native = context}, call, [](CUresult result) { return result == CUDA_SUCCESS; });
  }
  template <class Call>
  CUresult ends_primary(CUdevice device, Call&& call) {
    // Others may retain it, too, so the tracker checks whether it still exists afterwards.
    return end({.native = primary(device)}, call, [&](CUresult) { return !primary_is_active(device); });
  }
  template <class Call>
  CUresult ends_green(CUgreenCtx green, Call&& call) {
    return end({.native = context_of(green), .outlived = true}, call,
               [](CUresult result) { return result == CUDA_SUCCESS; });
  }

  // --- the session -------------------------------------------------------------------------------------------------
  // From now on the gate delays the calling thread.
  void enter_executor();
  // Called when the executor has nothing to do and is about to sleep, and when it has work again.
  void going_idle();
  void woken();

  // While an object exists, the calling thread passes the gate without delay, because work in flight waits for its
  // work.
  class Unasked {
   public:
    Unasked();
    ~Unasked();
    Unasked(const Unasked&) = delete;
    Unasked& operator=(const Unasked&) = delete;
  };

  // The session is about to be suspended. Returns true if all its work has ended: then the in-flight tracker's thread
  // calls the driver no more until work_on(). Executor only.
  bool rest();
  void work_on();
  // Whether the session captures a stream, as far as known.
  bool captures() const { return tracker_.captures(); }

  // Returns the page's present state. `counted`: the GPU scheduler wants work to be counted.
  struct Times {
    std::chrono::nanoseconds gpu{}, held{};
    uint64_t held_count = 0;
    bool counted = false;
  };
  Times times() const;

  // Returns the time for which the executor may poll for further work, as the GPU scheduler allows.
  const std::atomic<uint32_t>& spin_us() const { return parts_.page->spin_us; }

  // Ends all waits at the end of the session: the gate refuses a waiting thread at once, and every later thread that it
  // would delay. Any thread.
  void interrupt();
  // Ends the in-flight tracker's thread. From then on all calls pass. Executor only.
  void stop();

 private:
  // wanted: the executor waits for `resting` or `busy`.
  enum class Rest : uint32_t { none, wanted, resting, busy };
  enum class Passage : uint8_t { counted, uncounted, refused };
  Passage enter(const Work& work);
  void leave(const Work& work, bool done);
  bool held_up() const;
  CUresult end(const InFlightTracker::Ending& ending, const std::function<CUresult()>& call,
               const std::function<bool(CUresult)>& gone);
  bool primary_is_active(CUdevice device) const;
  // Null: there is none.
  CUcontext primary(CUdevice device) const;
  CUcontext context_of(CUgreenCtx green) const;
  GateWord read(std::memory_order order = std::memory_order_acquire) const {
    return {word_.load(std::memory_order_relaxed)->load(order)};
  }
  void wait_open(GateWord seen);
  void go_on(bool asks);
  void wait_progress(uint32_t seen, std::chrono::nanoseconds at_most);
  void budget(uint64_t bytes);
  void ring();
  void call_meter();

  // --- the in-flight tracker's thread ---
  void run();
  void poll_metered();
  void poll_resting(Rest rest);
  bool all_done();
  void poll_free();
  void sleep(uint32_t attention, std::chrono::nanoseconds at_most);

  const GateParts parts_;
  const std::atomic<uint32_t> open_{0};
  // Points to the page's word, or after stop() to a local word. Nothing is published through it: relaxed.
  std::atomic<const std::atomic<uint32_t>*> word_;
  InFlightTracker tracker_;
  CopyBudget copies_;
  // Executor: it has reported that it waits.
  bool stands_ = false;
  PageTime stands_since_{};

  // Incremented when the in-flight tracker observes a completion; the executor sleeps on it (futex) at the bound. The
  // tracker's counts are under its mutex: relaxed.
  std::atomic<uint32_t> progress_{0};
  // The executor waits for progress_: spares a system call; a stale value costs one sleep of kPollLong.
  std::atomic<bool> at_bound_{false};
  // Set by interrupt(); sleeps are bounded, so relaxed.
  std::atomic<bool> stopping_{false};
  // A hint for the in-flight tracker; relaxed.
  std::atomic<bool> executor_idle_{false};
  // The executor is not in the middle of an uncounted launch; relaxed: kTailTimeout is the other way to know.
  std::atomic<bool> tail_ready_{false};
  // Written by the executor (wanted, none) with call_meter() behind it, and by the in-flight tracker's thread in answer
  // to `wanted`. Release and acquire: the executor finds the tracker out of the driver.
  std::atomic<Rest> rest_{Rest::none};
  // The thread ends; the store is followed by call_meter().
  std::atomic<bool> quit_{false};
  // The in-flight tracker sleeps until it is woken. The tracker sets the flag before its last poll, and submitting
  // threads read it after they have changed the polled state. Both are sequentially consistent, so either the tracker
  // sees the work or the submitting thread sees the flag.
  std::atomic<bool> parked_{false};

  // The in-flight tracker's thread only.
  bool metered_ = false;
  bool was_closed_ = false;
  PageTime closed_at_{}, tail_since_{};
  unsigned quiet_samples_ = 0;
  // Sampling starts again when it is next used.
  bool rests_ = true;
  Sampling sampling_;
  std::thread thread_;
};

}  // namespace gpuwire::server
