#include "fixture.hpp"

#include <utility>

#include "server/gate/limits.hpp"

using namespace gpuwire::server;
using namespace std::chrono_literals;

TEST_CASE_FIXTURE(GateFixture, "a submission is in flight until it is done, and its time is counted") {
  set_and_wait(true);
  REQUIRE(idle());
  uint64_t bursts = page.bursts, busy = page.busy_ns;
  CHECK(launch() == CUDA_SUCCESS);
  CHECK(launch() == CUDA_SUCCESS);
  CHECK(page.in_flight == 1);
  CHECK(page.bursts == bursts + 1);
  CHECK(page.submissions == 2);
  gpu.finish(1);
  CHECK(page.in_flight == 1);
  gpu.finish(1);
  CHECK(idle());
  CHECK(page.last_end > 0);
  CHECK(page.busy_ns >= busy);
  CHECK(becomes([&] { return page.quiet_since != 0; }));
  CHECK(page.in_flight_ns == 0);
}

TEST_CASE_FIXTURE(GateFixture, "the first start after an opening is when the device has written its word") {
  set_and_wait(false);
  REQUIRE(idle());
  set(true);
  CHECK(launch() == CUDA_SUCCESS);
  uint32_t opening = page.opening;
  CHECK(page.started != opening);
  CHECK(page.stuck_since == 0);  // the context has not got the GPU
  auto before = page_now();
  gpu.begin();
  CHECK(becomes([&] { return page.started == opening; }));
  CHECK(page.first_start >= before.count());
  CHECK(becomes([&] { return page.stuck_since >= before.count(); }));
  // A later burst of the same opening writes no further word.
  gpu.finish_all();
  CHECK(idle());
  int64_t first = page.first_start;
  CHECK(launch() == CUDA_SUCCESS);
  gpu.finish_all();
  CHECK(idle());
  CHECK(page.first_start == first);
}

TEST_CASE_FIXTURE(GateFixture, "time before the context has got the GPU is nobody's") {
  set_and_wait(false);
  REQUIRE(idle());
  uint64_t busy = page.busy_ns;
  set(true);
  auto submitted = page_now();
  CHECK(launch() == CUDA_SUCCESS);
  while (page_now() - submitted < 5ms) std::this_thread::yield();
  auto began = page_now();
  gpu.begin();
  CHECK(becomes([&] { return page.started == page.opening; }));
  gpu.finish_all();
  CHECK(idle());
  CHECK(page.busy_ns - busy <= uint64_t((page_now() - began).count()));
}

TEST_CASE_FIXTURE(GateFixture, "closing the gate tells what was in flight before anybody counted") {
  CHECK(launch() == CUDA_SUCCESS);
  CHECK(table.cuCtxSetCurrent(FakeGpu::context()) == CUDA_SUCCESS);
  forget_rings();
  set_and_wait(false);
  CHECK(page.in_flight == 1);
  CHECK(becomes([&] { return gpu.everything_recorded() > 0; }));
  CHECK(page.in_flight == 1);
  gpu.finish_all();
  CHECK(idle());
  CHECK(rang());
}

TEST_CASE_FIXTURE(GateFixture, "a device at rest is seen at rest soon after the gate has closed") {
  CHECK(table.cuCtxSetCurrent(FakeGpu::context()) == CUDA_SUCCESS);
  gate.going_idle();
  set(false);
  CHECK(rang());
  CHECK(idle());
}

TEST_CASE_FIXTURE(GateFixture, "work of the hundredth context is marked like that of the first") {
  set_and_wait(true);
  REQUIRE(idle());
  size_t before = gpu.events_recorded();
  for (uintptr_t number = 1; number <= 100; ++number) {
    CHECK(table.cuCtxSetCurrent(reinterpret_cast<CUcontext>(0x10000 + number)) == CUDA_SUCCESS);
    CHECK(launch() == CUDA_SUCCESS);
  }
  CHECK(gpu.events_recorded() == before + 100);
  CHECK(table.cuCtxSetCurrent(FakeGpu::context()) == CUDA_SUCCESS);
  gpu.finish_all();
  CHECK(idle());
}

TEST_CASE_FIXTURE(GateFixture, "no look at the device breaks off a capture") {
  CHECK(table.cuCtxSetCurrent(FakeGpu::context()) == CUDA_SUCCESS);
  CHECK(table.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  for (int i = 0; i < 4; ++i) {
    set_and_wait(false);
    CHECK(rang());
    set_and_wait(true, false);
  }
  CHECK(!gpu.recorded_into_a_capture());
  CUgraph graph = nullptr;
  CHECK(table.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
}

// So many that they take longer than the work after them.
constexpr int kSamples = 100'000;

TEST_CASE("a sample after a long capture stands for no more than the time since one could be made") {
  FakeGpu gpu;
  SessionPage page;
  InFlightTracker tracker(gpu.table(), page);
  Sampling sampling;
  CUstream captured = FakeGpu::stream(1);
  tracker.enter_context(FakeGpu::context());
  CHECK_FALSE(tracker.sample(sampling));
  tracker.begin_capture(captured,
                        [&] { return gpu.table().cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED); });
  bool busy = false;
  for (int i = 0; i < kSamples; ++i) busy |= tracker.sample(sampling);
  auto last = page_now();
  busy |= tracker.sample(sampling);
  CHECK_FALSE(busy);
  CUgraph graph = nullptr;
  tracker.end_capture(captured, [&] { return gpu.table().cuStreamEndCapture(captured, &graph); });
  CHECK(gpu.table().cuLaunchKernel(nullptr, 1, 1, 1, 32, 1, 1, 0, FakeGpu::stream(2), nullptr, nullptr) ==
        CUDA_SUCCESS);
  CHECK(tracker.sample(sampling));
  CHECK(std::chrono::nanoseconds(page.busy_ns) <= page_now() - last);
}

// A session in the free regime whose stream captures, and work in another stream that only sampling finds.
struct CaptureFixture : GateFixture {
  CUcontext other = reinterpret_cast<CUcontext>(uintptr_t(0xc1));

  CaptureFixture() {
    CHECK(table.cuCtxSetCurrent(FakeGpu::context()) == CUDA_SUCCESS);
    gate.woken();
    REQUIRE(becomes([&] { return gpu.everything_recorded() > 0; }));
  }
  void capture() { CHECK(table.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS); }
  CUresult launch_beside() {
    return table.cuLaunchKernel(nullptr, 1, 1, 1, 32, 1, 1, 0, FakeGpu::stream(0x52), nullptr, nullptr);
  }
  // The device is sampled, found busy and, finally, idle.
  void check_sampled() {
    const size_t before = gpu.everything_recorded();
    CHECK(launch_beside() == CUDA_SUCCESS);
    CHECK(becomes([&] { return gpu.everything_recorded() > before; }));
    CHECK(becomes([&] { return page.in_flight == 1; }));
    gpu.finish_all();
    CHECK(idle());
    CHECK(!gpu.recorded_into_a_capture());
    CHECK(!gpu.asked_a_destroyed_stream());
  }
};

TEST_CASE_FIXTURE(CaptureFixture, "the device is sampled again when the stream of a capture has been destroyed") {
  capture();
  CHECK(table.cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  check_sampled();
}

// A kernel that does not end, in a stream beside one that captures.
TEST_CASE_FIXTURE(CaptureFixture, "work that was submitted beside an open capture is in flight until it is done") {
  bool before_it = false;
  SUBCASE("before the capture began") { before_it = true; }
  SUBCASE("while it was open, in a stream that has joined it since") {}
  if (before_it) CHECK(launch_beside() == CUDA_SUCCESS);
  capture();
  if (!before_it) CHECK(launch_beside() == CUDA_SUCCESS);
  // From here on neither the device nor this stream can be sampled.
  gpu.set_capturing(FakeGpu::stream(0x52), true);
  set_and_wait(false);
  REQUIRE(becomes([&] { return page.stuck_since != 0; }));
  set_and_wait(true);
  set_and_wait(false);
  CHECK(page.in_flight == 1);
  CHECK(page.stuck_since != 0);
  CHECK(!gpu.recorded_into_a_capture());
  gpu.finish_all();
  CHECK(idle());
}

TEST_CASE_FIXTURE(CaptureFixture, "nothing is in flight beside an open capture when nothing was submitted") {
  capture();
  gate.going_idle();
  set_and_wait(false);
  CHECK(idle());
  CHECK(page.submissions == 0);
}

// A tracker that the test drives, with a capturing stream.
struct CapturingTracker {
  FakeGpu gpu;
  SessionPage page;
  InFlightTracker tracker{gpu.table(), page};
  CUstream captured = FakeGpu::stream(1);

  CapturingTracker() {
    tracker.enter_context(FakeGpu::context());
    tracker.begin_capture(
        captured, [&] { return gpu.table().cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED); });
  }
  void end_capture() {
    CUgraph graph = nullptr;
    tracker.end_capture(captured, [&] { return gpu.table().cuStreamEndCapture(captured, &graph); });
  }
};

TEST_CASE_FIXTURE(CapturingTracker, "more than can be marked beside an open capture is in flight until it is over") {
  const Work work{.kind = WorkKind::compute, .stream = FakeGpu::stream(2), .key = 7};
  for (size_t i = 0; i <= kMarksMax; ++i) {
    tracker.submitting(work);
    CHECK(gpu.table().cuLaunchKernel(nullptr, 1, 1, 1, 32, 1, 1, 0, work.stream, nullptr, nullptr) == CUDA_SUCCESS);
    tracker.submitted(work, true);
  }
  gpu.finish_all();
  tracker.mark_tail();
  CHECK(tracker.poll().in_flight);
  CHECK(tracker.tail_expected());
  end_capture();
  tracker.mark_tail();
  CHECK_FALSE(tracker.poll().in_flight);
  CHECK(!gpu.recorded_into_a_capture());
}

TEST_CASE_FIXTURE(CapturingTracker, "a capture that is invalidated is known until it is ended") {
  Sampling sampling;
  gpu.invalidate_capture(captured);
  CHECK_FALSE(tracker.sample(sampling));
  CHECK(tracker.captures());
  end_capture();
  CHECK_FALSE(tracker.captures());
}

TEST_CASE_FIXTURE(CaptureFixture, "the end of another stream leaves a capture open") {
  capture();
  const size_t before = gpu.everything_recorded();
  CHECK(table.cuStreamDestroy_v2(FakeGpu::stream(0x53)) == CUDA_SUCCESS);
  for (int i = 0; i < 4; ++i) {
    set_and_wait(false);
    CHECK(rang());
    set_and_wait(true, false);
  }
  CHECK(gpu.everything_recorded() == before);
  CHECK(!gpu.recorded_into_a_capture());
}

TEST_CASE_FIXTURE(CaptureFixture, "the device is sampled again when the context of a capture has been destroyed") {
  CHECK(table.cuCtxSetCurrent(other) == CUDA_SUCCESS);
  capture();
  CHECK(table.cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  CHECK(table.cuCtxSetCurrent(FakeGpu::context()) == CUDA_SUCCESS);
  check_sampled();
}

TEST_CASE_FIXTURE(CaptureFixture, "the device is sampled again when the primary context of a capture has been reset") {
  capture();
  CHECK(table.cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CUcontext again = nullptr;
  CHECK(table.cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
  CHECK(table.cuCtxSetCurrent(again) == CUDA_SUCCESS);
  check_sampled();
}

TEST_CASE_FIXTURE(CaptureFixture, "the end of another context leaves a capture open") {
  capture();
  const size_t before = gpu.everything_recorded();
  CHECK(table.cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  for (int i = 0; i < 4; ++i) {
    set_and_wait(false);
    CHECK(rang());
    set_and_wait(true, false);
  }
  CHECK(gpu.everything_recorded() == before);
  CHECK(!gpu.recorded_into_a_capture());
}

TEST_CASE_FIXTURE(CaptureFixture, "the device is sampled again when a capture has been invalidated") {
  capture();
  gpu.invalidate_capture(stream);
  // Until the capture ends it may prevent sampling, so submissions are counted.
  CHECK(launch_beside() == CUDA_SUCCESS);
  CHECK(page.in_flight == 1);
  gpu.finish_all();
  CHECK(idle());
  const size_t before = gpu.everything_recorded();
  CHECK(becomes([&] { return gpu.everything_recorded() > before; }));
  // Also after the next capture has begun and ended in the same stream.
  CUgraph graph = nullptr;
  CHECK(table.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  capture();
  CHECK(table.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  check_sampled();
}

TEST_CASE(
    "what is counted as done is never more than was submitted, also when a sample ends the burst before the mark is "
    "looked at") {
  FakeGpu gpu;
  SessionPage page;
  InFlightTracker tracker(gpu.table(), page);
  Sampling sampling;
  tracker.enter_context(FakeGpu::context());
  const Work work{.kind = WorkKind::compute, .stream = FakeGpu::stream(1), .key = 7};
  for (uint64_t submitted = 1; submitted <= 3; ++submitted) {
    tracker.submitting(work);
    tracker.submitted(work, true);
    gpu.finish_all();
    CHECK_FALSE(tracker.sample(sampling));
    CHECK(page.completions == submitted);
    tracker.poll();
    CHECK(page.completions == submitted);
  }
}

TEST_CASE_FIXTURE(GateFixture, "the free regime's samples find a busy device and one at rest") {
  CHECK(table.cuCtxSetCurrent(FakeGpu::context()) == CUDA_SUCCESS);
  gate.woken();
  CHECK(launch() == CUDA_SUCCESS);
  CHECK(becomes([&] { return page.in_flight == 1; }));
  CHECK(page.submissions == 0);
  gpu.finish_all();
  CHECK(idle());
  gate.going_idle();
  size_t seen = gpu.everything_recorded();
  CHECK(seen > 0);
}

TEST_CASE_FIXTURE(GateFixture, "the end of a context gives up its events") {
  set_and_wait(true);
  for (int i = 0; i < 10; ++i) CHECK(launch() == CUDA_SUCCESS);
  CHECK(gpu.events_alive() > 0);
  gate.stop();  // no marks from here on
  CHECK(table.cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(gpu.events_alive() == 0);
}

TEST_CASE_FIXTURE(GateFixture, "the end of one context leaves what is in flight in another") {
  CUcontext other = reinterpret_cast<CUcontext>(uintptr_t(0xc1));
  set_and_wait(true);
  REQUIRE(idle());
  CHECK(launch() == CUDA_SUCCESS);
  CHECK(table.cuCtxSetCurrent(other) == CUDA_SUCCESS);
  CHECK(launch(2) == CUDA_SUCCESS);
  gpu.begin();
  CHECK(becomes([&] { return page.stuck_since != 0; }));
  int64_t since = page.stuck_since;
  CHECK(table.cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  CHECK(table.cuCtxSetCurrent(FakeGpu::context()) == CUDA_SUCCESS);
  set_and_wait(false);
  CHECK(page.in_flight == 1);
  CHECK(page.stuck_since == since);
  gpu.finish_all();
  CHECK(idle());
}

TEST_CASE_FIXTURE(GateFixture,
                  "a call that ends a context is in flight until it comes back, and holds up no other thread") {
  CUcontext other = reinterpret_cast<CUcontext>(uintptr_t(0xc1));
  set_and_wait(true);
  REQUIRE(idle());
  gpu.hold_endings(true);
  auto ends = std::async(std::launch::async, [&] { return table.cuCtxDestroy_v2(other); });
  CHECK(becomes([&] { return gpu.ending() == 1; }));
  set_and_wait(false);
  CHECK(page.in_flight == 1);
  CHECK(page.stuck_since != 0);
  set_and_wait(true, false);  // also in the free regime
  CHECK(becomes([&] { return page.in_flight == 1; }));
  CHECK(launch() == CUDA_SUCCESS);
  gpu.finish_all();
  CHECK(page.in_flight == 1);
  gpu.hold_endings(false);
  CHECK(ends.get() == CUDA_SUCCESS);
  CHECK(idle());
  CHECK(becomes([&] { return page.stuck_since == 0; }));
}

TEST_CASE_FIXTURE(GateFixture, "a primary context that somebody else holds goes on being metered") {
  gpu.share_primary();
  set_and_wait(true);
  REQUIRE(idle());
  CHECK(launch() == CUDA_SUCCESS);
  CHECK(table.cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  set_and_wait(false);
  CHECK(page.in_flight == 1);
  gpu.finish_all();
  CHECK(idle());
}

TEST_CASE_FIXTURE(GateFixture, "completions follow what is done") {
  set_and_wait(true);
  REQUIRE(idle());
  uint64_t before = page.completions;
  for (int i = 0; i < 3; ++i) CHECK(launch() == CUDA_SUCCESS);
  CHECK(page.completions == before);
  gpu.finish(2);
  CHECK(becomes([&] { return page.completions == before + 2; }));
  gpu.finish_all();
  CHECK(becomes([&] { return page.completions == before + 3; }));
}

TEST_CASE_FIXTURE(GateFixture, "a kernel that goes on and on is told with the time since when") {
  set_and_wait(true);
  REQUIRE(idle());
  auto before = page_now();
  CHECK(launch() == CUDA_SUCCESS);
  gpu.begin();
  CHECK(becomes([&] { return page.stuck_since >= before.count(); }));
  int64_t since = page.stuck_since;
  CHECK(launch() == CUDA_SUCCESS);  // more behind it changes nothing
  CHECK(page.stuck_since == since);
  gpu.finish(1);
  CHECK(becomes([&] { return page.stuck_since > since; }));
  gpu.finish(1);
  CHECK(becomes([&] { return page.stuck_since == 0; }));
}

TEST_CASE_FIXTURE(GateFixture, "work in other streams hides no kernel that goes on and on") {
  set_and_wait(true);
  REQUIRE(idle());
  CHECK(launch() == CUDA_SUCCESS);
  gpu.begin();
  REQUIRE(becomes([&] { return page.stuck_since != 0; }));
  const int64_t since = page.stuck_since;
  const CUstream endless = std::exchange(stream, FakeGpu::stream(0x52));
  for (uint64_t beats = 1; beats <= 5; ++beats) {
    const uint64_t before = page.completions;
    CHECK(launch(2) == CUDA_SUCCESS);
    gpu.finish_in(stream, 1);
    REQUIRE(becomes([&] { return page.completions == before + 1; }));
    CHECK(page.stuck_since == since);
  }
  CHECK(launch(2) == CUDA_SUCCESS);
  gpu.finish_in(endless, 1);
  CHECK(becomes([&] { return page.stuck_since > since; }));  // the time of the last kernel
  gpu.finish_all();
  CHECK(idle());
}

TEST_CASE_FIXTURE(
    GateFixture,
    "work that may wait for what was submitted before it, in any stream, stands still only when that does") {
  set_and_wait(true);
  REQUIRE(idle());
  const CUstream first = stream;
  for (int i = 0; i < 5; ++i) CHECK(launch() == CUDA_SUCCESS);
  stream = FakeGpu::stream(0x52);
  CHECK(launch(2) == CUDA_SUCCESS);
  gpu.begin();
  REQUIRE(becomes([&] { return page.stuck_since != 0; }));
  int64_t since = page.stuck_since;
  for (int i = 0; i < 5; ++i) {
    gpu.finish_in(first, 1);
    REQUIRE(becomes([&] { return page.stuck_since > since; }));
    since = page.stuck_since;
  }
  gpu.finish_all();
  CHECK(idle());
}

TEST_CASE(
    "beside work that stands still in one context no other one is let in under a bound, whatever is done meanwhile") {
  FakeGpu gpu;
  SessionPage page;
  InFlightTracker tracker(gpu.table(), page);
  auto submit = [&](CUstream stream, uint64_t key) {
    const Work work{.kind = WorkKind::compute, .stream = stream, .key = key};
    CHECK(gpu.table().cuLaunchKernel(nullptr, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr) == CUDA_SUCCESS);
    tracker.submitting(work);
    tracker.submitted(work, true);
  };
  CHECK(gpu.table().cuCtxSetCurrent(FakeGpu::context()) == CUDA_SUCCESS);
  tracker.enter_context(FakeGpu::context());
  submit(FakeGpu::stream(1), 1);
  gpu.begin();
  tracker.poll();
  const Work more{.kind = WorkKind::compute, .stream = FakeGpu::stream(3), .key = 3};
  const PageTime begun = page_now();
  auto beats_until = [&](PageTime until) {
    do {
      CHECK(gpu.table().cuCtxSetCurrent(FakeGpu::context()) == CUDA_SUCCESS);
      submit(FakeGpu::stream(2), 2);
      gpu.finish_in(FakeGpu::stream(2), 1);
      tracker.poll();
    } while (page_now() < until);
  };
  beats_until(begun + kStall + kStall / 2);
  CHECK(gpu.table().cuCtxSetCurrent(FakeGpu::context(0xc1)) == CUDA_SUCCESS);
  CHECK(tracker.wait_for_room(more, 500us) > 0ns);
  // It is not let in for want of progress, either, unlike work behind a stuck kernel.
  while (page_now() - begun < 4 * kStall) std::this_thread::yield();
  CHECK(tracker.wait_for_room(more, 500us) > 0ns);
  CHECK(gpu.table().cuCtxSetCurrent(FakeGpu::context()) == CUDA_SUCCESS);
  CHECK(tracker.wait_for_room(more, 500us) == 0ns);
  gpu.finish_all();
  CHECK(gpu.table().cuCtxSetCurrent(FakeGpu::context(0xc1)) == CUDA_SUCCESS);
  tracker.poll();
  CHECK(gpu.table().cuCtxSetCurrent(FakeGpu::context(0xc1)) == CUDA_SUCCESS);
  CHECK(tracker.wait_for_room(more, 500us) == 0ns);
  CHECK(gpu.table().cuCtxSetCurrent(FakeGpu::context()) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(GateFixture, "more work than there are marks is still in flight until the last of it is done") {
  set_and_wait(true);
  REQUIRE(idle());
  CHECK(table.cuCtxSetCurrent(FakeGpu::context()) == CUDA_SUCCESS);
  constexpr size_t kMany = 5000;
  for (size_t i = 0; i < kMany; ++i) CHECK(launch() == CUDA_SUCCESS);
  gpu.finish(kMany - 1);
  CHECK(page.in_flight == 1);
  CHECK(becomes([&] { return gpu.everything_recorded() > 0; }));
  gpu.finish_all();
  CHECK(idle());
}
