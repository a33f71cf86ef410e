// A thread that polls the watched events and calls back when one has completed.
#pragma once

#include <cuda.h>

#include <functional>
#include <thread>
#include <vector>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"
#include "server/replay/completion/completion.hpp"

namespace gpuwire::server {

// The watcher's functions of a driver; null members are not called.
struct WatcherDriver {
  CUresult(CUDAAPI* query)(CUevent) = nullptr;
  CUresult(CUDAAPI* set_current)(CUcontext) = nullptr;
};

// One thread, started by the first watch; it sleeps while nothing is watched, and ever longer while nothing completes.
class PollingWatcher final : public CompletionWatcher {
 public:
  // `spin_us`: the time for which the thread polls without sleeping after a new watch. `enter` runs first on the
  // thread.
  PollingWatcher(WatcherDriver driver, uint32_t spin_us, std::function<void()> enter)
      : driver_(driver), spin_us_(spin_us), enter_(std::move(enter)) {}
  ~PollingWatcher() override { stop(); }

  bool watch(CUcontext context, CUevent event, std::function<void(CUresult result)> done) override;
  // Returns whether no event is watched, and no callback runs.
  bool idle();
  // Stops all callbacks; waits for a running one. Not on the watcher's thread.
  void stop();

 private:
  struct Watch {
    CUcontext context;
    CUevent event;
    std::function<void(CUresult)> done;
  };
  void run();
  // Polls each of `watches` once, calls back for completed ones and removes them. Returns whether there was one.
  bool poll(std::vector<Watch>& watches);

  const WatcherDriver driver_;
  const uint32_t spin_us_;
  const std::function<void()> enter_;
  // Used on the watcher's thread only.
  CUcontext current_ = nullptr;

  Mutex mutex_;
  Condition changed_;
  // The thread takes these over.
  std::vector<Watch> added_ GUARDED_BY(mutex_);
  // The number of watches in both lists.
  size_t watched_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gpuwire::server
