// Functions of the program that run when a stream gets to them: cuLaunchHostFunc, cuStreamAddCallback.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "client_stub/driver/session/session_part.hpp"

namespace gpuwire::client {

class ServerSession;

struct HostCallback {
  CUhostFn host_function = nullptr;            // cuLaunchHostFunc
  CUstreamCallback stream_callback = nullptr;  // cuStreamAddCallback
  CUstream stream = nullptr;
  void* user_data = nullptr;
  bool repeats = false;  // part of a graph: runs with every launch of it, so it is kept
  bool sent = false;     // the program has been told, or will be, that it was added
};

// Those of one session. Any thread; one leaf lock, not held while a function of the program runs.
class HostCallbacks final : public SessionPart {
 public:
  HostCallbacks(ServerSession& session, SessionParts& parts) noexcept : SessionPart(parts), session_(session) {}

  // A number to send with host_function; the thread that will run it starts with the first one. 0: no memory, no
  // thread.
  uint64_t add(const HostCallback& callback) noexcept;
  // Either of these follows: it was sent, so a stream callback will be called whatever becomes of the session;
  void sent(uint64_t number) noexcept;
  // or not, or it can run no more.
  void remove(uint64_t number) noexcept;
  // What was added under this number. False: nothing, or it has run and does not repeat.
  bool find(uint64_t number, HostCallback& callback) const noexcept;
  // The stream got there. False: no such number. Runs on our thread, in the order of these calls.
  bool reached(uint64_t number, CUresult status) noexcept;

  // Is there one that was sent by itself (not as part of a graph) and has not returned?
  bool any_to_come() const noexcept { return unfinished_.load(std::memory_order_relaxed) != 0; }

  // Is there any that may run, also as part of a graph?
  bool any() const noexcept {
    std::lock_guard lock(mutex_);
    return !callbacks_.empty() || any_to_come();
  }

  // Waits until there is none, or the session is over; at most kAwaitedMax, for those of a context that has ended or
  // faulted never run. Not from within one.
  void await_none() noexcept;

  // Ends the thread, once the function that it runs has returned. Before the session goes: tests only.
  void stop() noexcept;

  // What the server did not call in time is not called when the program ends. When the session is lost, it is as after
  // a fault of the device: stream callbacks are told, host functions are left out.
  void ended(SessionEnd how) noexcept override;
  // A function of the program that called fork() returns to this thread in the child, which then waits for ever.
  void after_fork_in_child() noexcept override;

 private:
  static constexpr std::chrono::seconds kAwaitedMax{2};
  struct Due {
    uint64_t number;
    CUresult status;
  };
  void run() noexcept;
  void tell_lost() noexcept;       // under the lock
  void count_finished() noexcept;  // under the lock

  ServerSession& session_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;   // also: stopping_
  std::condition_variable finished_;  // unfinished_ has become 0; also: over_
  bool stopping_ = false, over_ = false, lost_ = false;
  std::unordered_map<uint64_t, HostCallback> callbacks_;
  // At most one for each stream at a time, as the server's stream waits until the function has returned; and all when
  // the session is lost.
  std::deque<Due> due_;
  uint64_t next_ = 1;
  // Those of callbacks_ and the running one that do not repeat. Written under the lock; relaxed: a thread that asks
  // about its own earlier callback sees its own write, and of other threads' it can only know by synchronising with
  // them.
  std::atomic<size_t> unfinished_{0};
  std::thread thread_;  // lives until the process ends
};

// Is this thread running one? Such a function must not wait for the device (CUDA_ERROR_NOT_PERMITTED).
bool in_host_callback() noexcept;

}  // namespace gpuwire::client
