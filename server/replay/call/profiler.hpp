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
    uint64_t timed = 0;     // spans that were sent to the client
    uint64_t dropped = 0;   // work of which no times are known
    uint64_t error_ns = 0;  // the bound of the error of the times
  };

  // Of the frame that is being executed.
  struct Frame {
    uint32_t context = 0;
    uint64_t sequence = 0;
  };

  virtual ~Profiler() = default;

  // All on the executor's thread. Before begin() has been true the others do nothing.

  // The source of the current frame. Before begin().
  virtual void frames_from(std::function<Frame()> frame) = 0;

  // From now on work is timed, and reported by profile_spans. To be called before there is a context: no thread may
  // have GPU work in flight. Both outlive the profiler's last notice, which end() or stop() sends.
  // CUDA_ERROR_NOT_SUPPORTED: the driver lacks a required function. CUDA_ERROR_ILLEGAL_STATE: it has begun already.
  virtual CUresult begin(HandleTable& handles, Outbox& outbox) = 0;
  // The name of a function or kernel of the driver's.
  virtual void name_function(const void* native, std::string_view name) = 0;
  // The context is about to go, and at rest: the known times of its work are kept, its events are released.
  virtual void context_ends(CUcontext native) = 0;
  // Waits a little for work that still runs, and reports the rest.
  virtual Totals end() = 0;
  // Sends nothing more: the session is over. May be called again.
  virtual void stop() = 0;
  // The clock of the times.
  virtual uint64_t now_ns() const = 0;
};

}  // namespace gpuwire::server
