// Streams and events, as their context stores them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda.h>

#include "server/software_device/driver/stream/operation.hpp"

namespace gpuwire::software_device {

class Context;
class CaptureSession;
struct ContextSlot;

// Sets of the device's multiprocessors, one bit each.
inline constexpr uint32_t kAllProcessors = ~0u;

struct Stream {
  enum class Kind { legacy, per_thread, created };

  CUstream handle = nullptr;
  std::weak_ptr<Context> context;
  std::shared_ptr<ContextSlot> green;  // the green context in which it was created, or null
  Kind kind = Kind::created;
  unsigned flags = 0;
  int priority = 0;
  unsigned long long id = 0;

  // Returns whether this stream and the legacy stream wait for each other's work.
  bool blocking() const noexcept { return (flags & CU_STREAM_NON_BLOCKING) == 0; }

  // Guarded by the context's submission mutex.
  OperationPtr tail;
  unsigned submitted = 0;
  std::array<OperationPtr, 2> checkpoints;  // older, newer; see Context::submit

  // Read without the mutex, so that calls on streams without a capture are fast. Written under graph_mutex with
  // `capture`.
  std::atomic<bool> capturing{false};
  std::shared_ptr<CaptureSession> capture;  // guarded by graph_mutex
};

struct Event {
  CUevent handle = nullptr;
  std::weak_ptr<Context> context;
  unsigned flags = 0;

  bool timed() const noexcept { return (flags & CU_EVENT_DISABLE_TIMING) == 0; }

  std::mutex mutex;
  OperationPtr recorded;  // null before the first record
  // Set by a record in a captured stream: the capture, and the nodes before the record. Guarded by graph_mutex.
  std::weak_ptr<CaptureSession> captured_in;
  std::vector<CUgraphNode> captured_after;
  std::atomic<bool> captured{false};
};

}  // namespace gpuwire::software_device
