// Functions of the program that run when a stream gets to them: cuLaunchHostFunc, cuStreamAddCallback.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

class ServerSession;
struct Caller;
struct GraphUses;

struct HostCallback {
  CUhostFn host_function = nullptr;            // cuLaunchHostFunc
  CUstreamCallback stream_callback = nullptr;  // cuStreamAddCallback
  CUstream stream = nullptr;
  void* user_data = nullptr;
  bool repeats = false;                    // part of a graph: runs with every launch of it, so it is kept
  bool sent = false;                       // the program has learned, or will, that it was added
  uint64_t wire_stream = 0, sequence = 0;  // where it stands, from when it was sent
  // In the place of a function of the program: sends now the data that a copy behind it reads (late_copy.hpp).
  std::shared_ptr<const GraphUses> source;
};

// Those of one session. Any thread; one leaf lock, not held while a function of the program runs.
class HostCallbacks final : public SessionPart {
 public:
  HostCallbacks(ServerSession& session, SessionParts& parts) noexcept : SessionPart(parts), session_(session) {}

  // A number to send with host_function; the thread that will run it starts with the first one. 0: no memory, no
  // thread.
  uint64_t add(const HostCallback& callback) noexcept;
  // Either of these follows: it was sent by this frame, so a stream callback will be called whatever becomes of the
  // session;
  void sent(uint64_t number, uint64_t wire_stream, uint64_t sequence) noexcept;
  // or not, or it can run no more.
  void remove(uint64_t number) noexcept;
  // The function added under this number. False: none, or it has run and does not repeat.
  bool find(uint64_t number, HostCallback& callback) const noexcept;
  // The stream got there. False: no such number. Runs on our thread, in the order of these calls.
  bool reached(uint64_t number, CUresult status) noexcept;

  // Is there one that was sent by itself (not as part of a graph, which MemoryInFlight covers) and has not returned?
  bool any_to_come() const noexcept { return unfinished_.load(std::memory_order_relaxed) != 0; }
  // One of the program's?
  bool any_of_program_to_come() const noexcept {
    return unfinished_.load(std::memory_order_relaxed) > reading_.load(std::memory_order_relaxed);
  }

  // Is there one in the stream that was sent by `sequence` and has not returned? Then nothing that came behind it is
  // done, whatever the server would say. Not of NULL streams, which every context has.
  bool stand_before(uint64_t wire_stream, uint64_t sequence) const noexcept {
    return any_to_come() && any_before(wire_stream, sequence);
  }

  // Waits until there is none, or the session is over; at most kAwaitedMax, for those of a context that has ended or
  // faulted never run. Not from within one.
  void await_none() noexcept;

  // Ends the thread, once the function that it runs has returned. Before the session goes: tests only.
  void stop() noexcept;

  // A function that the server did not call in time is not called when the program ends. A lost session is like a fault
  // of the device: stream callbacks are called, host functions are left out.
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
  bool any_before(uint64_t wire_stream, uint64_t sequence) const noexcept;
  void notify_lost() noexcept REQUIRES(mutex_);
  void count_added(const HostCallback& callback) noexcept REQUIRES(mutex_);
  void count_finished(const HostCallback& callback) noexcept REQUIRES(mutex_);

  ServerSession& session_;
  mutable Mutex mutex_;
  // A function is due, or stopping_ is set.
  std::condition_variable arrived_;
  // unfinished_ has become 0, or over_ is set.
  std::condition_variable finished_;
  bool stopping_ GUARDED_BY(mutex_) = false, over_ GUARDED_BY(mutex_) = false, lost_ GUARDED_BY(mutex_) = false;
  std::unordered_map<uint64_t, HostCallback> callbacks_ GUARDED_BY(mutex_);
  // The streams and frames of functions that have not returned.
  std::set<std::pair<uint64_t, uint64_t>> standing_ GUARDED_BY(mutex_);
  // At most one for each stream at a time, as the server's stream waits until the function has returned; and all when
  // the session is lost.
  std::deque<Due> due_ GUARDED_BY(mutex_);
  uint64_t next_ GUARDED_BY(mutex_) = 1;
  // Those of callbacks_ and the running one that do not repeat. Written under the lock; relaxed: a thread that asks
  // about its own earlier callback sees its own write, and it can only know of other threads' by synchronising with
  // them.
  std::atomic<size_t> unfinished_{0};
  std::atomic<size_t> reading_{0};  // those of them that are ours, for late copies; the same holds
  std::thread thread_;              // lives until the process ends
};

// Is this thread running one? Such a function must not wait for the device (CUDA_ERROR_NOT_PERMITTED).
bool in_host_callback() noexcept;

// Sends a callback to its stream, of which `callback.stream` is the program's argument: cuLaunchHostFunc or
// cuStreamAddCallback, by which of its functions there is.
CUresult send_host_callback(const Caller& caller, HostCallback callback, bool per_thread);

}  // namespace gpuwire::client
