#include "server/worker/session/polling_watcher.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>

#include <sys/prctl.h>

#include "server/worker/connection/limits.hpp"

namespace gpuwire::server {

bool PollingWatcher::watch(CUcontext context, CUevent event, std::function<void(CUresult)> done) {
  MutexLock lock(mutex_);
  // A watch without an event ends at the next poll, so the bound is not for it.
  if (stopping_ || (event && watched_ >= kWatchedMax) || !driver_.query) return false;
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  added_.push_back({context, event, std::move(done)});
  ++watched_;
  changed_.notify_one();
  return true;
}

bool PollingWatcher::idle() {
  MutexLock lock(mutex_);
  return watched_ == 0;
}

void PollingWatcher::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

bool PollingWatcher::poll(std::vector<Watch>& watches) {
  size_t kept = 0, count = watches.size();
  for (size_t i = 0; i < count; ++i) {
    Watch& watch = watches[i];
    if (watch.context != current_ && driver_.set_current) {
      driver_.set_current(watch.context);
      current_ = watch.context;
    }
    CUresult result = watch.event ? driver_.query(watch.event) : CUDA_SUCCESS;
    if (result != CUDA_ERROR_NOT_READY) {
      watch.done(result);
    } else {
      if (kept != i) watches[kept] = std::move(watch);
      ++kept;
    }
  }
  watches.erase(watches.begin() + std::ptrdiff_t(kept), watches.end());
  return kept != count;
}

void PollingWatcher::run() {
  using Clock = std::chrono::steady_clock;
  ::prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);  // ns; the default of 50 us would be most of the interval
  enter_();
  std::vector<Watch> watches;
  uint32_t sleep_us = kWatchSleepMinUs;
  Clock::time_point spin_until{};
  MutexLock lock(mutex_);
  for (;;) {
    watched_ = watches.size() + added_.size();
    if (watches.empty()) {
      changed_.wait(lock.native(), [this]() REQUIRES(mutex_) { return stopping_ || !added_.empty(); });
    } else if (added_.empty() && Clock::now() >= spin_until) {
      changed_.wait_for(lock.native(), std::chrono::microseconds(sleep_us),
                        [this]() REQUIRES(mutex_) { return stopping_ || !added_.empty(); });
      sleep_us = std::min(sleep_us * 2, kWatchSleepMaxUs);
    }
    if (stopping_) return;
    if (!added_.empty()) {
      std::move(added_.begin(), added_.end(), std::back_inserter(watches));
      added_.clear();
      sleep_us = kWatchSleepMinUs;
      spin_until = Clock::now() + std::chrono::microseconds(spin_us_);
    }
    lock.unlock();
    if (poll(watches)) sleep_us = kWatchSleepMinUs;
    lock.lock();
  }
}

}  // namespace gpuwire::server
