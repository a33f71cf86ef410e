#include "fixture.hpp"
#include "server/gate/limits.hpp"

using namespace gpuwire::server;
using namespace std::chrono_literals;

TEST_CASE_FIXTURE(GateFixture, "an open gate without in-flight tracker counts nothing") {
  CHECK(gate.unhindered());
  for (int i = 0; i < 100; ++i) CHECK(launch() == CUDA_SUCCESS);
  CHECK(gpu.launched() == 100);
  CHECK(page.submissions == 0);
  CHECK(gpu.events_recorded() == 0);
}

TEST_CASE_FIXTURE(GateFixture, "a closed gate holds up the executor until it is opened, and knocks once") {
  set_and_wait(false);
  REQUIRE(idle());
  forget_rings();
  auto result = launch_elsewhere();
  CHECK(rang());
  CHECK(becomes([&] { return page.waiting == 1; }));
  CHECK(gpu.launched() == 0);
  set(true);
  CHECK(result.get() == CUDA_SUCCESS);
  CHECK(gpu.launched() == 1);
  CHECK(page.waiting == 0);
  CHECK(page.in_flight == 1);
  CHECK(page.waits == 1);
  CHECK(page.waited_ns > 0);
  CHECK(gate.times().counted);
  CHECK(gate.times().held_count == 1);
  CHECK(gate.times().held.count() == int64_t(page.waited_ns));
  gpu.finish_all();
  CHECK(idle());
}

TEST_CASE_FIXTURE(GateFixture, "a gate that is opened without in-flight tracker lets go whoever stood at it") {
  set_and_wait(false);
  auto result = launch_elsewhere();
  CHECK(becomes([&] { return page.waiting == 1; }));
  set(true, false);
  CHECK(result.get() == CUDA_SUCCESS);
  CHECK(page.waiting == 0);
}

TEST_CASE_FIXTURE(GateFixture, "threads that the gate does not hold up pass a closed one and are counted") {
  set_and_wait(false);
  REQUIRE(idle());
  auto result = std::async(std::launch::async, [&] { return launch(); });
  CHECK(result.get() == CUDA_SUCCESS);
  CHECK(page.in_flight == 1);
  CHECK(page.submissions == 1);
  forget_rings();
  gpu.finish_all();
  CHECK(idle());
  CHECK(rang());  // the scheduler waits for the drain
}

TEST_CASE_FIXTURE(GateFixture, "work that others wait for passes a closed gate unasked") {
  set_and_wait(false);
  {
    Gate::Unasked unasked;
    CHECK(launch() == CUDA_SUCCESS);
  }
  auto held_up = launch_elsewhere();
  CHECK(becomes([&] { return page.waiting == 1; }));
  gpu.finish_all();
  set(true);
  CHECK(held_up.get() == CUDA_SUCCESS);
  gpu.finish_all();
}

TEST_CASE_FIXTURE(GateFixture, "the end of a session ends the waiting at a closed gate") {
  set_and_wait(false);
  auto result = launch_elsewhere();
  CHECK(becomes([&] { return page.waiting == 1; }));
  gate.interrupt();
  CHECK(result.get() == CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(gpu.launched() == 0);
  CHECK(launch() == CUDA_ERROR_SYSTEM_NOT_READY);
  gate.stop();
  CHECK(launch() == CUDA_SUCCESS);
}

TEST_CASE("the end of a session ends the waiting at the bound") {
  bool held_up = is_seen([](GateFixture& f) {
    CHECK(f.launch(1) == CUDA_SUCCESS);
    CHECK(f.launch(2) == CUDA_SUCCESS);
    auto result = f.launch_elsewhere(3);
    f.gate.interrupt();
    return result.get() == CUDA_ERROR_SYSTEM_NOT_READY && f.gpu.launched() == 2;
  });
  CHECK(held_up);
}

// An ending session refuses held-up work at once, which shows these tests whether it would be held up.

TEST_CASE("no more than two launches of unknown length are in flight while there is a bound") {
  bool held_up = is_seen([](GateFixture& f) {
    f.gate.interrupt();
    CHECK(f.launch(1) == CUDA_SUCCESS);
    CHECK(f.launch(2) == CUDA_SUCCESS);
    return f.launch(3) == CUDA_ERROR_SYSTEM_NOT_READY && f.gpu.in_flight() == 2;
  });
  CHECK(held_up);
}

TEST_CASE_FIXTURE(GateFixture, "work that ends lets in work that stands at the bound") {
  set_and_wait(true, true, 500us);
  REQUIRE(idle());
  CHECK(launch(1) == CUDA_SUCCESS);
  CHECK(launch(2) == CUDA_SUCCESS);
  auto third = launch_elsewhere(3);
  gpu.finish(1);
  CHECK(third.get() == CUDA_SUCCESS);
  CHECK(gpu.in_flight() == 2);
  gpu.finish_all();
  CHECK(idle());
}

TEST_CASE("contexts of one device have one bound together") {
  bool held_up = is_seen([](GateFixture& f) {
    f.gate.interrupt();
    for (uintptr_t number : {1, 2}) {
      CHECK(f.table.cuCtxSetCurrent(FakeGpu::context(number)) == CUDA_SUCCESS);
      CHECK(f.launch(number) == CUDA_SUCCESS);
    }
    CHECK(f.table.cuCtxSetCurrent(FakeGpu::context(3)) == CUDA_SUCCESS);
    return f.launch(3) == CUDA_ERROR_SYSTEM_NOT_READY && f.gpu.launched() == 2;
  });
  CHECK(held_up);
}

TEST_CASE_FIXTURE(GateFixture, "contexts of two devices have a bound each") {
  set_and_wait(true, true, 500us);
  REQUIRE(idle());
  gate.interrupt();
  for (int device : {0, 1}) {
    CHECK(table.cuCtxSetCurrent(FakeGpu::context(1, device)) == CUDA_SUCCESS);
    CHECK(launch(1) == CUDA_SUCCESS);
    CHECK(launch(2) == CUDA_SUCCESS);
  }
  CHECK(gpu.in_flight() == 4);
  gpu.finish_all();
  CHECK(idle());
}

TEST_CASE_FIXTURE(GateFixture, "a context's work in flight makes room when the context ends") {
  set_and_wait(true, true, 500us);
  REQUIRE(idle());
  gate.interrupt();
  CHECK(table.cuCtxSetCurrent(FakeGpu::context(1)) == CUDA_SUCCESS);
  CHECK(launch(1) == CUDA_SUCCESS);
  CHECK(launch(2) == CUDA_SUCCESS);
  CHECK(table.cuCtxDestroy_v2(FakeGpu::context(1)) == CUDA_SUCCESS);
  CHECK(table.cuCtxSetCurrent(FakeGpu::context(2)) == CUDA_SUCCESS);
  CHECK(launch(3) == CUDA_SUCCESS);
  CHECK(launch(4) == CUDA_SUCCESS);
  CHECK(gpu.in_flight() == 2);
  gpu.finish_all();
  CHECK(idle());
}

TEST_CASE_FIXTURE(GateFixture, "work that waits for what is submitted later gets it in spite of the bound") {
  set_and_wait(true, true, 500us);
  REQUIRE(idle());
  // No kernel ends before the last one is launched.
  constexpr int kNeeded = 8;
  auto results = std::async(std::launch::async, [&] {
    gate.enter_executor();
    bool all = true;
    for (int i = 0; i < kNeeded; ++i) all &= launch(uintptr_t(i + 1)) == CUDA_SUCCESS;
    return all;
  });
  CHECK(results.get());
  CHECK(gpu.in_flight() == kNeeded);
  gpu.finish_all();
  CHECK(idle());
}

TEST_CASE_FIXTURE(GateFixture, "a capture passes a closed gate, and nothing is recorded into it") {
  set_and_wait(false);
  CHECK(table.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) CHECK(launch() == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  CHECK(table.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  CHECK(!gpu.recorded_into_a_capture());
  CHECK(page.submissions == 0);
  auto result = launch_elsewhere();  // the capture is over
  CHECK(becomes([&] { return page.waiting == 1; }));
  set(true);
  CHECK(result.get() == CUDA_SUCCESS);
  gpu.finish_all();
}

TEST_CASE_FIXTURE(GateFixture, "a large copy over the host's link does not wait for a turn, a small one does") {
  set_and_wait(false);
  char memory[1] = {};
  CHECK(table.cuMemcpyHtoDAsync_v2(0x1000, memory, kLargeCopyBytes, stream) == CUDA_SUCCESS);
  CHECK(page.submissions == 0);
  auto small = std::async(std::launch::async, [&] {
    gate.enter_executor();
    return table.cuMemcpyHtoDAsync_v2(0x1000, memory, kLargeCopyBytes - 1, stream);
  });
  CHECK(becomes([&] { return page.waiting == 1; }));
  set(true);
  CHECK(small.get() == CUDA_SUCCESS);
  gpu.finish_all();
}

TEST_CASE_FIXTURE(GateFixture, "the executor's sleep is told") {
  gate.going_idle();
  CHECK(page.idle_since > 0);
  gate.woken();
  CHECK(page.idle_since == 0);
}

TEST_CASE("a layer that is put before the driver's functions later sees the program's work, not the gate's own") {
  FakeGpu gpu;
  SessionPage page;
  DriverTable behind = gpu.table();
  Gate gate({.page = &page, .doorbell = -1, .driver = &behind, .cores = 1});
  DriverTable front = behind;
  put_gate_before(front, gate);
  gate.enter_executor();
  static std::atomic<int> fills, launches;
  fills = launches = 0;
  static decltype(behind.cuMemsetD32Async) fill;
  fill = behind.cuMemsetD32Async;
  behind.cuMemsetD32Async = [](CUdeviceptr address, unsigned value, size_t count, CUstream stream) {
    ++fills;
    return fill(address, value, count, stream);
  };
  static decltype(behind.cuLaunchKernel) launch;
  launch = behind.cuLaunchKernel;
  behind.cuLaunchKernel = [](auto... arguments) {
    ++launches;
    return launch(arguments...);
  };
  const auto set = [&](bool open) {
    if (open) page.opening.fetch_add(1, std::memory_order_release);
    page.gate.store(GateWord::of(open, true, {}), std::memory_order_seq_cst);
    page.attention.fetch_add(1, std::memory_order_release);
    futex_wake(page.attention);
  };
  set(false);
  REQUIRE(becomes([&] { return page.answered.load() >= page.attention.load() && page.in_flight.load() == 0; }));
  set(true);
  // With the first work of an opening, the gate writes a word of its own.
  CHECK(front.cuLaunchKernel(reinterpret_cast<CUfunction>(1), 1, 1, 1, 32, 1, 1, 0, FakeGpu::stream(0x51), nullptr,
                             nullptr) == CUDA_SUCCESS);
  gpu.begin();
  REQUIRE(becomes([&] { return page.started.load() == page.opening.load(); }));
  gpu.finish_all();
  REQUIRE(becomes([&] { return page.in_flight.load() == 0; }));
  CHECK(launches == 1);
  CHECK(fills == 0);
}
