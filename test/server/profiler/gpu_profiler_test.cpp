// Work is timed by events around it; whatever fails, the program's own work is done and nothing is left behind.
#include "server/profiler/gpu_profiler.hpp"

#include <doctest/doctest.h>

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "server/driver_table.hpp"
#include "test/server/replay/fake_session.hpp"

namespace gpuwire::server {
namespace {

constexpr float kKernelMs = 3;

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

  DriverTable table{};
  std::mutex mutex;
  // Under it, but what a test changes before there is work.
  std::map<CUevent, Event> events;
  float clock_ms = 0;
  uintptr_t next_event = 0x1000;
  size_t launched = 0, recorded = 0;
  int streams = 0;
  bool hold = false, capturing = false, refuse_records = false, refuse_launches = false, broken = false;

  static inline ClockedGpu* gpu = nullptr;
};

struct Fixture {
  ClockedGpu gpu;
  HandleTable handles;
  test::FakeOutbox outbox;
  GpuProfiler profiler{gpu.table};

  Fixture() {
    profiler.frames_from([] { return Profiler::Frame{7, 42}; });
    REQUIRE(profiler.begin(handles, outbox) == CUDA_SUCCESS);
  }
  CUresult launch(uintptr_t function = 1, uintptr_t stream = 0) {
    return gpu.table.cuLaunchKernel(ClockedGpu::pointer<CUfunction>(function), 1, 1, 1, 1, 1, 1, 0,
                                    ClockedGpu::pointer<CUstream>(stream), nullptr, nullptr);
  }

  struct Told {
    std::vector<std::string> names;
    std::vector<wire::message::ProfileSpan> spans;
  };
  Told told() {
    Told out;
    std::lock_guard lock(outbox.mutex);
    for (const test::Sent& sent : outbox.sent) {
      auto notice = sent.as<schema::ProfileSpans>();
      CHECK(notice.getFirstName() == out.names.size());
      for (auto name : notice.getNames()) out.names.emplace_back(name.begin(), name.size());
      for (auto span : notice.getSpans()) {
        CHECK(span.getName() < out.names.size());  // told no later than what has it
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
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "a kernel is told with its name, its frame and the time that the GPU says") {
  profiler.name_function(ClockedGpu::pointer<void*>(1), "add");
  REQUIRE(launch(1) == CUDA_SUCCESS);
  REQUIRE(launch(2) == CUDA_SUCCESS);
  const auto totals = profiler.end();
  CHECK(totals.timed == 2);
  CHECK(totals.dropped == 0);
  const Told all = told();
  CHECK(all.names == std::vector<std::string>{"add", "by_the_driver"});
  REQUIRE(all.spans.size() == 2);
  for (const auto& span : all.spans) {
    CHECK(span.kind == uint32_t(SpanKind::kernel));
    CHECK(span.context == 7);
    CHECK(span.sequence == 42);
    CHECK(span.end_ns - span.start_ns == uint64_t(kKernelMs * 1e6));
  }
  CHECK(all.spans[1].start_ns >= all.spans[0].end_ns);
}

TEST_CASE_FIXTURE(Fixture, "work that is captured is none yet, and nothing is recorded into the capture") {
  gpu.capturing = true;
  REQUIRE(launch() == CUDA_SUCCESS);
  CHECK(gpu.recorded == 0);
  CHECK(profiler.end().dropped == 0);
  CHECK(told().spans.empty());
}

TEST_CASE_FIXTURE(Fixture, "a launch that the driver refuses is no span, and its error is the program's") {
  gpu.refuse_launches = true;
  CHECK(launch() == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  const auto totals = profiler.end();
  CHECK(totals.timed == 0);
  CHECK(totals.dropped == 0);
}

TEST_CASE_FIXTURE(Fixture, "work whose events cannot be recorded is done, and counted as dropped") {
  gpu.refuse_records = true;
  CHECK(launch() == CUDA_SUCCESS);
  CHECK(gpu.launched == 1);
  CHECK(profiler.end().dropped == 1);
}

TEST_CASE_FIXTURE(Fixture, "work past the bound is done, and counted as dropped") {
  gpu.hold = true;
  for (size_t i = 0; i < kTimedPendingMax + 10; ++i) REQUIRE(launch() == CUDA_SUCCESS);
  CHECK(gpu.launched == kTimedPendingMax + 10);
  gpu.finish();
  const auto totals = profiler.end();
  CHECK(totals.timed == kTimedPendingMax);
  CHECK(totals.dropped == 10);
}

TEST_CASE_FIXTURE(Fixture, "a context that failed is let alone, and what was pending there is dropped") {
  gpu.hold = true;
  for (int i = 0; i < 3; ++i) REQUIRE(launch() == CUDA_SUCCESS);
  {
    std::lock_guard lock(gpu.mutex);
    gpu.broken = true;
  }
  CHECK(profiler.end().dropped == 3);
  CHECK(launch() == CUDA_SUCCESS);
  CHECK(told().spans.empty());
}

TEST_CASE_FIXTURE(Fixture, "a context that ends gives everything back, and what is known of it is told") {
  for (int i = 0; i < 5; ++i) REQUIRE(launch(1, 16 * (i + 1)) == CUDA_SUCCESS);
  profiler.context_ends(ClockedGpu::pointer<CUcontext>(0xc0));
  CHECK(gpu.alive() == 0);
  CHECK(gpu.streams == 0);
  CHECK(profiler.end().timed == 5);
}

TEST_CASE_FIXTURE(Fixture, "after the end nothing is timed, and it cannot begin again") {
  profiler.end();
  const size_t before = gpu.recorded;
  REQUIRE(launch() == CUDA_SUCCESS);
  CHECK(gpu.recorded == before);
  CHECK(profiler.begin(handles, outbox) == CUDA_ERROR_ILLEGAL_STATE);
}

TEST_CASE("a driver that cannot measure is left as it is") {
  ClockedGpu gpu;
  gpu.table.cuEventElapsedTime_v2 = nullptr;
  const auto before = gpu.table.cuLaunchKernel;
  HandleTable handles;
  test::FakeOutbox outbox;
  GpuProfiler profiler(gpu.table);
  CHECK(profiler.begin(handles, outbox) == CUDA_ERROR_NOT_SUPPORTED);
  const bool same = gpu.table.cuLaunchKernel == before;
  CHECK(same);
}

}  // namespace gpuwire::server
