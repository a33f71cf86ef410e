// Reports completed device work: watches events and calls back. Implemented by server/worker.
#pragma once

#include <cuda.h>

#include <functional>

namespace gpuwire::server {

class CompletionWatcher {
 public:
  virtual ~CompletionWatcher() = default;

  // Calls `done` once, on the watcher's thread, when `event` has completed (CUDA_SUCCESS) or has failed (its error).
  // The watcher polls all watched events, so a slow event delays no other. `context` is current on that thread for the
  // query and for `done`, which may send, and may call watch(). Without an event, `done` is called at the next poll,
  // with CUDA_SUCCESS: for a thread that may not call the driver. The caller owns the event and keeps it until `done`
  // has run. Returns false if too many events are watched (kWatchedMax) or the session ends; `done` is then never
  // called. The bound is not for a watch without an event. Any thread.
  virtual bool watch(CUcontext context, CUevent event, std::function<void(CUresult result)> done) = 0;
};

}  // namespace gpuwire::server
