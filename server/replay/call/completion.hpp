// Reports completed device work: watches events and calls back. Implemented by server/worker.
#pragma once

#include <cuda.h>

#include <functional>

namespace gpuwire::server {

class CompletionWatcher {
 public:
  virtual ~CompletionWatcher() = default;

  // Calls `done` once, on the watcher's thread, when `event` has completed (CUDA_SUCCESS) or can no longer do so (its
  // error). Polls all watched events: a slow one keeps none of the others waiting. `context` is current there for the
  // query and for `done`, which may send, and may call watch(). The event is the caller's and lives until `done` has
  // run. Any thread. False: too many are watched (kWatchedMax) or the session ends; `done` is then never called.
  virtual bool watch(CUcontext context, CUevent event, std::function<void(CUresult result)> done) = 0;
};

}  // namespace gpuwire::server
