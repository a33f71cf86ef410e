// Events of the client that a thread other than the executor is looking at: they must not be destroyed under its eyes.
#pragma once

#include <cuda.h>

#include <mutex>
#include <unordered_map>

namespace gpuwire::server {

struct DriverTable;

// Any thread but enter() and destroy(), which are the executor's. The lock is not held while the driver is called.
class WatchedEvents {
 public:
  explicit WatchedEvents(const DriverTable& driver) : driver_(driver) {}

  void enter(CUevent event);
  // The last one to leave destroys the event if the client has asked for that meanwhile.
  void leave(CUevent event);
  // Destroys the event now, or as soon as nobody looks at it.
  CUresult destroy(CUevent event);

 private:
  struct Watch {
    unsigned watchers = 0;
    bool destroyed = false;
  };
  const DriverTable& driver_;
  std::mutex mutex_;
  std::unordered_map<CUevent, Watch> watches_;
};

}  // namespace gpuwire::server
