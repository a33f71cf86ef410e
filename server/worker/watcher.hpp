// Completion that is pushed: events and streams that the client wants to hear of when they are done. server/worker/polling_watcher.cpp.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace gpuwire::server {

// Polls the driver for what is watched, on a thread of its own that sleeps while nothing is, and sends NoticeOrdinal::completion for each.
// All functions are called on the executor thread. Everything watched belongs to the context that the frame being executed names.
class CompletionWatcher {
 public:
  virtual ~CompletionWatcher() = default;

  // Tells the client when `native`'s latest record is done. `event`: the client's handle; `record`: WatchEvent.record; `sequence`: the watch
  // frame's. A later watch of the same event replaces this one, which is then told as done together with it.
  virtual void watch_event(uint64_t event, uint64_t record, uint64_t sequence, CUevent native) = 0;
  // Tells the client when everything sent to `native` so far is done. Records an event of its own in the stream; when that fails (the
  // stream is capturing, the context is broken) the notice carries the error at once.
  virtual void watch_stream(uint64_t stream, uint64_t sequence, CUstream native) = 0;

  // To be called before the driver destroys an event or a context: nothing of it is touched afterwards. What was watched is not told.
  virtual void forget_event(uint64_t event) = 0;
  virtual void forget_context(CUcontext context) = 0;
};

}  // namespace gpuwire::server
