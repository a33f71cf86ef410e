// The client's events that a thread other than the executor polls: they must not be destroyed meanwhile.
#pragma once

#include <cuda.h>

#include <unordered_map>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::server {

struct DriverTable;

// Any thread, except enter() and destroy(), which only the executor calls. The lock is not held during a driver call.
class WatchedEvents {
 public:
  explicit WatchedEvents(const DriverTable& driver) : driver_(driver) {}

  void enter(CUevent event);
  // The last thread to leave destroys the event if the client has destroyed it meanwhile.
  void leave(CUevent event);
  // Destroys the event now, or when the last thread leaves it.
  CUresult destroy(CUevent event);

 private:
  struct Watch {
    unsigned watchers = 0;
    bool destroyed = false;
  };
  const DriverTable& driver_;
  Mutex mutex_;
  std::unordered_map<CUevent, Watch> watches_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::server
