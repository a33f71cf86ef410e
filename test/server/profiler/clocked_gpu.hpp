// A GPU with a clock of its own, and a profiler's messages to the client.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "server/driver_table.hpp"
#include "server/profiler/timed_driver.hpp"
#include "test/server/replay/fake_session.hpp"

namespace gpuwire::test {

inline constexpr float kKernelMs = 3;

// A GPU with a clock of its own: each kernel takes 3 ms of it. One at a time: driver functions have no other argument.
class ClockedGpu {
 public:
  ClockedGpu() {
    gpu = this;
    table.cuCtxGetCurrent = [](CUcontext* context) {
      *context = pointer<CUcontext>(0xc0);
      return CUDA_SUCCESS;
    };
    table.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
    table.cuStreamCreate = [](CUstream* stream, unsigned) {
      std::lock_guard lock(gpu->mutex);
      ++gpu->streams;
      *stream = pointer<CUstream>(0x99);
      return CUDA_SUCCESS;
    };
    table.cuStreamDestroy_v2 = [](CUstream) {
      std::lock_guard lock(gpu->mutex);
      --gpu->streams;
      return CUDA_SUCCESS;
    };
    table.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
      *status = gpu->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
      return CUDA_SUCCESS;
    };
    table.cuEventCreate = [](CUevent* event, unsigned) {
      std::lock_guard lock(gpu->mutex);
      *event = pointer<CUevent>(gpu->next_event += 16);
      gpu->events[*event] = {};
      return CUDA_SUCCESS;
    };
    table.cuEventDestroy_v2 = [](CUevent event) {
      std::lock_guard lock(gpu->mutex);
      return gpu->events.erase(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    };
    table.cuEventRecord = [](CUevent event, CUstream stream) {
      std::lock_guard lock(gpu->mutex);
      if (gpu->refuse_records) return CUDA_ERROR_INVALID_HANDLE;
      ++gpu->recorded;
      const bool anchor = stream == pointer<CUstream>(0x99);
      gpu->events[event] = {gpu->clock_ms, !gpu->hold || anchor};
      return CUDA_SUCCESS;
    };
    table.cuEventQuery = [](CUevent event) {
      std::lock_guard lock(gpu->mutex);
      if (gpu->broken) return CUDA_ERROR_ILLEGAL_ADDRESS;
      return gpu->events.at(event).done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    };
    table.cuEventElapsedTime_v2 = [](float* ms, CUevent from, CUevent to) {
      std::lock_guard lock(gpu->mutex);
      *ms = gpu->events.at(to).at_ms - gpu->events.at(from).at_ms;
      return CUDA_SUCCESS;
    };
    table.cuFuncGetName = [](const char** name, CUfunction) {
      *name = "by_the_driver";
      return CUDA_SUCCESS;
    };
    table.cuLaunchKernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              CUstream, void**, void**) {
      std::lock_guard lock(gpu->mutex);
      ++gpu->launched;
      gpu->clock_ms += kKernelMs;
      if (gpu->on_launch && !gpu->refuse_launches) gpu->on_launch();
      return gpu->refuse_launches ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_SUCCESS;
    };
  }

  template <class Handle>
  static Handle pointer(uintptr_t value) {
    return reinterpret_cast<Handle>(value);
  }
  void finish() {
    std::lock_guard lock(mutex);
    hold = false;
    for (auto& [event, state] : events) state.done = true;
  }
  size_t alive() {
    std::lock_guard lock(mutex);
    return events.size();
  }

  struct Event {
    float at_ms = 0;
    bool done = true;
  };

  server::DriverTable table{};
  std::mutex mutex;
  // Guarded by the mutex, except for changes by the test before any work.
  std::map<CUevent, Event> events;
  float clock_ms = 0;
  uintptr_t next_event = 0x1000;
  size_t launched = 0, recorded = 0;
  int streams = 0;
  std::function<void()> on_launch;  // an observer of launches
  bool hold = false, capturing = false, refuse_records = false, refuse_launches = false, broken = false;

  static inline ClockedGpu* gpu = nullptr;
};

struct Told {
  std::vector<std::string> names;
  std::vector<wire::message::ProfileSpan> spans;  // of work
  std::string method;                             // the method of measurement
};
inline Told told(FakeOutbox& outbox) {
  Told out;
  std::lock_guard lock(outbox.mutex);
  for (const Sent& sent : outbox.sent) {
    auto notice = sent.as<schema::ProfileSpans>();
    CHECK(notice.getFirstName() == out.names.size());
    for (auto name : notice.getNames()) out.names.emplace_back(name.begin(), name.size());
    for (auto span : notice.getSpans()) {
      REQUIRE(span.getName() < out.names.size());  // sent before its first use
      if (span.getKind() == uint32_t(server::SpanKind::method)) {
        out.method = out.names[span.getName()];
        continue;
      }
      out.spans.push_back({.kind = span.getKind(),
                           .name = span.getName(),
                           .context = span.getContext(),
                           .stream = span.getStream(),
                           .sequence = span.getSequence(),
                           .bytes = span.getBytes(),
                           .start_ns = span.getStartNs(),
                           .end_ns = span.getEndNs()});
    }
  }
  return out;
}

}  // namespace gpuwire::test
