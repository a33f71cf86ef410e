// Work is timed by events around it; if timing fails, the program's own work is done all the same, and no event is
// leaked.
#include "server/profiler/gpu_profiler.hpp"

#include <doctest/doctest.h>

#include <mutex>
#include <string>
#include <vector>

#include "test/server/profiler/clocked_gpu.hpp"
#include "test/server/replay/fake_session.hpp"

namespace gpuwire::server {
namespace {

using test::ClockedGpu;
using test::kKernelMs;
using test::told;
using test::Told;

struct Fixture {
  ClockedGpu gpu;
  HandleTable handles;
  test::FakeOutbox outbox;
  // Long enough for a busy machine: no test waits for its end.
  GpuProfiler profiler{gpu.table, {.note = {}, .end_wait = 2min}};

  Fixture() {
    profiler.frames_from([] { return Profiler::Frame{7, 42}; });
    REQUIRE(profiler.begin(handles, outbox) == CUDA_SUCCESS);
  }
  CUresult launch(uintptr_t function = 1, uintptr_t stream = 0) {
    return gpu.table.cuLaunchKernel(ClockedGpu::pointer<CUfunction>(function), 1, 1, 1, 1, 1, 1, 0,
                                    ClockedGpu::pointer<CUstream>(stream), nullptr, nullptr);
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
  const Told all = told(outbox);
  CHECK(all.method == "events (CUPTI is off on this server)");
  CHECK(all.names == std::vector<std::string>{all.method, "add", "by_the_driver"});
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
  CHECK(told(outbox).spans.empty());
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
  CHECK(told(outbox).spans.empty());
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
