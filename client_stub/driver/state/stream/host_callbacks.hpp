// Functions of the program that run when a stream reaches them: cuLaunchHostFunc, cuStreamAddCallback.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

class ServerSession;
struct Caller;
struct GraphUses;

struct HostCallback {
  // The function of cuLaunchHostFunc.
  CUhostFn host_function = nullptr;
  // The function of cuStreamAddCallback.
  CUstreamCallback stream_callback = nullptr;
  CUstream stream = nullptr;
  void* user_data = nullptr;
  // The function is part of a graph and runs with each launch of it.
  bool repeats = false;
  // The program has learned, or will learn, that the function was added.
  bool sent = false;
  // The place of the function, once it has been sent.
  uint64_t wire_stream = 0, sequence = 0;
  // Set in place of a function of the program: the data that a late copy behind it reads, which are sent when the
  // stream reaches it (late_copy.hpp).
  std::shared_ptr<const GraphUses> source;
};

// The callbacks of one session. Any thread; one leaf lock, not held while a function of the program runs.
class HostCallbacks final : public SessionPart {
 public:
  HostCallbacks(ServerSession& session, SessionParts& parts) noexcept : SessionPart(parts), session_(session) {}

  // Adds a callback and returns its number for the frame; 0 if there is no memory or no thread. The first call starts
  // the thread that runs the functions.
  uint64_t add(const HostCallback& callback) noexcept;
  // Notes that the callback was sent by this frame. A stream callback is then called in any case, even after the loss
  // of the session. Either this function or remove() follows add().
  void sent(uint64_t number, uint64_t wire_stream, uint64_t sequence) noexcept;
  // Removes a callback that was not sent, or cannot run any more.
  void remove(uint64_t number) noexcept;
  // Stores the callback of this number. Returns false if there is none, or it has run and does not repeat.
  bool find(uint64_t number, HostCallback& callback) const noexcept;
  // Notes that the stream has reached the callback. Returns false if there is no such number. The functions run on the
  // client's thread, in the order of these calls.
  bool reached(uint64_t number, CUresult status) noexcept;

  // Returns whether a callback was sent by itself (MemoryInFlight covers those of graphs) and has not returned.
  bool any_to_come() const noexcept { return unfinished_.load(std::memory_order_relaxed) != 0; }
  // Returns whether such a callback is one of the program's.
  bool any_of_program_to_come() const noexcept {
    return unfinished_.load(std::memory_order_relaxed) > reading_.load(std::memory_order_relaxed);
  }

  // Returns whether a callback in the stream was sent by `sequence` and has not returned. Work behind it is then not
  // done, whatever the server would answer. Not for NULL streams, which every context has.
  bool stand_before(uint64_t wire_stream, uint64_t sequence) const noexcept {
    return any_to_come() && any_before(wire_stream, sequence);
  }

  // Waits until there is no callback, or the session has ended; at most for kAwaitedMax, because callbacks of a context
  // that has ended or faulted never run. Precondition: the caller is not a callback.
  void await_none() noexcept;

  // Ends the thread when the function that it runs has returned. Called before the session ends, by tests only.
  void stop() noexcept;

  // At the program's end, functions that the server has not called are dropped. A lost session is like a fault of the
  // device: stream callbacks are called, host functions are dropped.
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
  // Sends the data that the server needs behind the function (or, for a late copy, the copy's source), and then the
  // answer for which the stream waits. Lock: none.
  void answer(const Due& due, const HostCallback& callback) noexcept;
  bool any_before(uint64_t wire_stream, uint64_t sequence) const noexcept;
  void notify_lost() noexcept REQUIRES(mutex_);
  void count_added(const HostCallback& callback) noexcept REQUIRES(mutex_);
  void count_finished(const HostCallback& callback) noexcept REQUIRES(mutex_);

  ServerSession& session_;
  mutable Mutex mutex_;
  // A function is due, or stopping_ is set.
  Condition arrived_;
  // unfinished_ has become 0, or over_ is set.
  Condition finished_;
  bool stopping_ GUARDED_BY(mutex_) = false, over_ GUARDED_BY(mutex_) = false, lost_ GUARDED_BY(mutex_) = false;
  std::unordered_map<uint64_t, HostCallback> callbacks_ GUARDED_BY(mutex_);
  // The streams and frames of functions that have not returned.
  std::set<std::pair<uint64_t, uint64_t>> standing_ GUARDED_BY(mutex_);
  // At most one for each stream at a time, because the server's stream waits until the function has returned; all of
  // them when the session is lost.
  std::deque<Due> due_ GUARDED_BY(mutex_);
  uint64_t next_ GUARDED_BY(mutex_) = 1;
  // The number of callbacks_ that do not repeat, with the running one. Written under the lock. Relaxed: a thread that
  // asks about its own earlier callback sees its own write, and it learns of other threads' callbacks only by
  // synchronising with them.
  std::atomic<size_t> unfinished_{0};
  // The number of these that are the client's, for late copies. Relaxed, for the same reason.
  std::atomic<size_t> reading_{0};
  // The thread lives until the process ends.
  std::thread thread_;
};

// Sends a callback to its stream; `callback.stream` is the program's argument. The function that is set decides between
// cuLaunchHostFunc and cuStreamAddCallback.
CUresult send_host_callback(const Caller& caller, HostCallback callback, bool per_thread);

}  // namespace gpuwire::client
