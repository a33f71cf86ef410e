// Measures the session's GPU work, for a client that asked for a profile. Implemented by server/profiler.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <string_view>

namespace gpuwire::server {

class HandleTable;
class Outbox;

class Profiler {
 public:
  struct Totals {
    // The spans that were sent to the client.
    uint64_t timed = 0;
    // The work items without known times.
    uint64_t dropped = 0;
    // The bound of the error of the times.
    uint64_t error_ns = 0;
  };

  // The frame that is being executed.
  struct Frame {
    uint32_t context = 0;
    uint64_t sequence = 0;
  };

  virtual ~Profiler() = default;

  // All functions run on the executor's thread. Until begin() has succeeded, the others do nothing.

  // Sets the source of the current frame. Precondition: begin() has not been called.
  virtual void frames_from(std::function<Frame()> frame) = 0;

  // Starts timing the session's work; profile_spans notices report it. Precondition: the session has no context, so
  // that no thread has GPU work in flight. `handles` and `outbox` outlive the profiler's last notice, which end() or
  // stop() sends. CUDA_ERROR_NOT_SUPPORTED: the driver lacks a required function. CUDA_ERROR_ILLEGAL_STATE: profiling
  // has begun already.
  virtual CUresult begin(HandleTable& handles, Outbox& outbox) = 0;
  // Sets the name of a driver's function or kernel.
  virtual void name_function(const void* native, std::string_view name) = 0;
  // Keeps the known times of the context's work, and releases the profiler's events in it. Called before the context is
  // destroyed, when it has no work in flight.
  virtual void context_ends(CUcontext native) = 0;
  // Waits briefly for work that still runs, and reports all spans not yet reported.
  virtual Totals end() = 0;
  // Stops all notices at the end of the session. May be called again.
  virtual void stop() = 0;
  // The clock of the spans' times.
  virtual uint64_t now_ns() const = 0;
};

}  // namespace gpuwire::server
