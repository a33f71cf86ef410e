#include "client_stub/driver/state/stream/host_callbacks.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <new>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "protocol/threads/condition.hpp"
#include "protocol/wire/handle.hpp"

namespace gpuwire::client {

uint64_t HostCallbacks::add(const HostCallback& callback) noexcept {
  try {
    MutexLock lock(mutex_);
    uint64_t number = next_++;
    callbacks_.emplace(number, callback);
    count_added(callback);
    if (!thread_.joinable()) {
      // The program's threads handle the program's signals.
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      try {
        thread_ = std::thread([this] { run(); });
      } catch (...) {
        callbacks_.erase(number);
        count_finished(callback);
        number = 0;
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    return number;
  } catch (...) {
    return 0;
  }
}

void HostCallbacks::remove(uint64_t number) noexcept {
  MutexLock lock(mutex_);
  auto found = callbacks_.find(number);
  if (found == callbacks_.end()) return;
  count_finished(found->second);
  callbacks_.erase(found);
}

void HostCallbacks::count_added(const HostCallback& callback) noexcept {
  if (callback.repeats) return;
  if (callback.source) ++reading_;
  ++unfinished_;
}

void HostCallbacks::count_finished(const HostCallback& callback) noexcept {
  if (callback.repeats) return;
  if (callback.source) --reading_;
  if (callback.sequence != 0) standing_.erase({callback.wire_stream, callback.sequence});
  if (--unfinished_ == 0) finished_.notify_all();
}

void HostCallbacks::await_none() noexcept {
  MutexLock lock(mutex_);
  finished_.wait_for(lock.native(), kAwaitedMax, [this]() REQUIRES(mutex_) { return over_ || !any_to_come(); });
}

void HostCallbacks::sent(uint64_t number, uint64_t wire_stream, uint64_t sequence) noexcept {
  MutexLock lock(mutex_);
  if (auto found = callbacks_.find(number); found != callbacks_.end()) {
    HostCallback& callback = found->second;
    callback.sent = true;
    if (!callback.repeats && wire_stream > wire::kStreamLegacy) try {
        standing_.emplace(wire_stream, sequence);
        callback.wire_stream = wire_stream;
        callback.sequence = sequence;
      } catch (const std::bad_alloc&) {}  // then queries are sent to the server
  }
  if (lost_) notify_lost();
}

bool HostCallbacks::any_before(uint64_t wire_stream, uint64_t sequence) const noexcept {
  MutexLock lock(mutex_);
  auto oldest = standing_.lower_bound({wire_stream, 0});
  return oldest != standing_.end() && oldest->first == wire_stream && oldest->second <= sequence;
}

void HostCallbacks::ended(SessionEnd how) noexcept {
  MutexLock lock(mutex_);
  over_ = true;
  standing_.clear();
  lost_ = how == SessionEnd::lost;
  finished_.notify_all();
  if (lost_) notify_lost();
}

void HostCallbacks::notify_lost() noexcept {
  const CUresult why = session_.connection().state();
  const size_t before = due_.size();
  try {
    for (const auto& [number, callback] : callbacks_) {
      if (callback.stream_callback && callback.sent) due_.push_back({number, why});
    }
  } catch (...) {
    // Without memory some callbacks are not notified.
  }
  // In the order of the calls. A callback that is already in the queue runs once: its second entry finds nothing.
  std::sort(due_.begin() + long(before), due_.end(),
            [](const Due& one, const Due& other) { return one.number < other.number; });
  arrived_.notify_one();
}

bool HostCallbacks::find(uint64_t number, HostCallback& callback) const noexcept {
  MutexLock lock(mutex_);
  auto found = callbacks_.find(number);
  if (found == callbacks_.end()) return false;
  callback = found->second;
  return true;
}

bool HostCallbacks::reached(uint64_t number, CUresult status) noexcept {
  try {
    MutexLock lock(mutex_);
    if (!callbacks_.contains(number)) return false;
    due_.push_back({number, status});
    arrived_.notify_one();
    return true;
  } catch (...) {
    return false;
  }
}

void HostCallbacks::run() noexcept {
  pthread_setname_np(pthread_self(), "gpuwire-host-fn");
  // The program's function may access managed memory: a fault while SIGSEGV is blocked would end the process.
  sigset_t faults;
  sigemptyset(&faults);
  sigaddset(&faults, SIGSEGV);
  pthread_sigmask(SIG_UNBLOCK, &faults, nullptr);
  if (ThreadState* thread = thread_state()) thread->in_callback = true;
  Session::Answering answering;
  MutexLock lock(mutex_);
  while (true) {
    arrived_.wait(lock.native(), [this]() REQUIRES(mutex_) { return stopping_ || !due_.empty(); });
    if (stopping_) return;
    Due due = due_.front();
    due_.pop_front();
    auto found = callbacks_.find(due.number);
    if (found == callbacks_.end()) continue;
    HostCallback callback = found->second;
    if (!callback.repeats) callbacks_.erase(found);
    lock.unlock();
    // After a fault of its context, a host function is not called; a stream callback is called with the error (CUDA
    // driver API).
    if (callback.stream_callback) {
      callback.stream_callback(callback.stream, due.status, callback.user_data);
    } else if (due.status == CUDA_SUCCESS && callback.host_function) {
      callback.host_function(callback.user_data);
    }
    if (process()) answer(due, callback);
    lock.lock();
    count_finished(callback);
    lock.unlock();
    callback.source.reset();  // a block's last holder ends outside the lock
    lock.lock();
  }
}

void HostCallbacks::stop() noexcept {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  arrived_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void HostCallbacks::after_fork_in_child() noexcept {
  new (&mutex_) Mutex;
  new (&arrived_) Condition;
  new (&finished_) Condition;
  new (&due_) std::deque<Due>;
}

}  // namespace gpuwire::client
