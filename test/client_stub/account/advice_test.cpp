#include "client_stub/account/advice.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace gpuwire::client;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

// Ten seconds with a round trip of a millisecond.
RunFigures run() {
  RunFigures out{.program = "train", .process_id = 7, .elapsed_ns = 10 * kSecond};
  out.round_trip_ns = 1'000'000;
  out.server = ServerTimes{.age_ns = 10 * kSecond, .input_ns = 10 * kSecond};
  return out;
}

void add(RunFigures& run, WaitedCall call) {
  run.waits += call.waits;
  run.wait_ns += call.wait_ns;
  run.calls.push_back(call);
}

bool has(const std::string& line, const char* part) { return line.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("There are five lines, whatever was counted") {
  RunFigures nothing;
  CHECK(explain_run(nothing).size() == 5);
  RunFigures little = run();
  add(little, {.name = "cuMemAlloc_v2", .waits = 1, .wait_ns = kSecond});
  CHECK(explain_run(little).size() == 5);
  RunFigures much = run();
  for (const char* name :
       {"cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuStreamSynchronize", "cuMemGetInfo"})
    add(much, {.name = name, .waits = 1000, .wait_ns = kSecond});
  CHECK(explain_run(much).size() == 5);
}

TEST_CASE("The parts of the waiting add up to it") {
  RunFigures figures = run();
  add(figures, {.name = "cuStreamSynchronize", .waits = 1000, .wait_ns = 5 * kSecond});
  figures.server = ServerTimes{.age_ns = 10 * kSecond,
                               .input_ns = 6 * kSecond,
                               .device_ns = kSecond,
                               .held_ns = kSecond,
                               .gpu_ns = kSecond,
                               .gpu_counted = true};
  WaitParts parts = divide_waiting(figures);
  CHECK(parts.held == kSecond);
  CHECK(parts.gpu == kSecond);
  CHECK(parts.server == 2 * kSecond);
  CHECK(parts.network == kSecond);
  CHECK(parts.network + parts.held + parts.gpu + parts.server == figures.wait_ns);
}

TEST_CASE("Time that the server cannot have spent was spent on the connection") {
  RunFigures figures = run();
  add(figures, {.name = "cuMemcpyHtoD_v2", .waits = 10, .wait_ns = 4 * kSecond});
  CHECK(divide_waiting(figures).network == 4 * kSecond);
  figures.server.reset();
  CHECK(divide_waiting(figures).network == 4 * kSecond);
  CHECK(has(explain_run(figures)[1], "is not known"));
}

TEST_CASE("Copies from pageable memory that waited are named with their count, and pinned memory is advised") {
  RunFigures figures = run();
  add(figures,
      {.name = "cuMemcpyHtoD_v2", .waits = 1024, .pageable_waits = 1024, .wait_ns = 3 * kSecond + kSecond / 10});
  add(figures, {.name = "cuMemAlloc_v2", .waits = 20, .wait_ns = kSecond / 10});
  auto lines = explain_run(figures);
  CHECK(has(lines[2], "cudaMemcpy to the device from pageable memory 1,024 times, 3.1 s"));
  CHECK(has(lines[3],
            "change: cudaMemcpy to the device from pageable memory waited 1,024 times, 3.1 s: use pinned memory"));
  CHECK(has(lines[4], "nothing else is to be gained"));
}

TEST_CASE("Pinned memory is not advised to who uses it") {
  RunFigures figures = run();
  add(figures, {.name = "cuMemcpyHtoD_v2", .waits = 1024, .wait_ns = 3 * kSecond});
  CHECK_FALSE(has(explain_run(figures)[3], "pinned"));
  CHECK(has(explain_run(figures)[3], "cudaMemcpyAsync"));
}

TEST_CASE("The change that gains most comes first") {
  RunFigures figures = run();
  add(figures, {.name = "cuMemAlloc_v2", .waits = 1000, .wait_ns = kSecond});
  add(figures, {.name = "cuMemcpyDtoH_v2", .waits = 3000, .wait_ns = 3 * kSecond});
  auto lines = explain_run(figures);
  CHECK(has(lines[3], "cudaMemcpy from the device"));
  CHECK(has(lines[4], "cudaMalloc waited 1,000 times"));
}

TEST_CASE("Forms of one function are one call") {
  RunFigures figures = run();
  add(figures, {.name = "cuMemAllocAsync", .waits = 600, .wait_ns = kSecond});
  add(figures, {.name = "cuMemAllocAsync_ptsz", .waits = 400, .wait_ns = kSecond});
  CHECK(has(explain_run(figures)[3], "cudaMallocAsync waited 1,000 times, 2.0 s"));
}

TEST_CASE("A synchronisation that waits for the GPU is not to be left out") {
  RunFigures figures = run();
  add(figures, {.name = "cuStreamSynchronize", .waits = 10, .wait_ns = 9 * kSecond});
  figures.server->gpu_ns = 9 * kSecond;
  figures.server->gpu_counted = true;
  auto lines = explain_run(figures);
  CHECK(has(lines[3], "the GPU had its work for 90 % of the time"));
  CHECK(has(lines[4], "nothing else is to be gained"));
}

TEST_CASE("Synchronisations that wait for round trips only are") {
  RunFigures figures = run();
  add(figures, {.name = "cuStreamSynchronize", .waits = 4000, .wait_ns = 5 * kSecond});
  figures.server->gpu_ns = kSecond;
  figures.server->gpu_counted = true;
  auto lines = explain_run(figures);
  CHECK(has(lines[3], "cudaStreamSynchronize waited 4,000 times, 5.0 s: synchronise less often"));
}

TEST_CASE("Time that nobody accounts for is no reason to synchronise less") {
  RunFigures figures = run();
  add(figures, {.name = "cuStreamSynchronize", .waits = 10, .wait_ns = 9 * kSecond});
  figures.server->gpu_ns = 4 * kSecond;
  auto lines = explain_run(figures);
  CHECK(has(lines[3], "change nothing"));
}

TEST_CASE("Results that are large are worth to be read less often") {
  RunFigures figures = run();
  add(figures, {.name = "cuMemcpyDtoH_v2", .waits = 10, .wait_ns = 5 * kSecond, .bytes = 1 << 30});
  CHECK(has(explain_run(figures)[3], "cudaMemcpy from the device waited 10 times, 5.0 s"));
}

TEST_CASE("Other tenants' turns are told, with how often") {
  RunFigures figures = run();
  add(figures, {.name = "cuCtxSynchronize", .waits = 10, .wait_ns = 5 * kSecond});
  figures.server->held_ns = 4 * kSecond;
  figures.server->held = 1200;
  CHECK(has(explain_run(figures)[3], "held back 1,200 times, 4.0 s"));
}

TEST_CASE("The server's time for posted calls is reported with the call that waits for them") {
  RunFigures figures = run();
  add(figures, {.name = "cuCtxSynchronize", .waits = 1, .wait_ns = 5 * kSecond});
  figures.server->input_ns = 4 * kSecond;
  auto lines = explain_run(figures);
  CHECK(has(lines[3], "the server's own work took 5.0 s"));
  CHECK(has(lines[4], "nothing else"));
}

TEST_CASE("The server's time in a call that another line advises to change is not reported twice") {
  RunFigures figures = run();
  add(figures, {.name = "cuMemAlloc_v2", .waits = 1000, .wait_ns = 5 * kSecond});
  figures.server->input_ns = 6 * kSecond;
  auto lines = explain_run(figures);
  CHECK(has(lines[3], "cudaMalloc"));
  CHECK(has(lines[4], "nothing else"));
}

TEST_CASE("A connection that takes no more is told as such") {
  RunFigures figures = run();
  add(figures, {.name = "cuMemcpyHtoDAsync_v2", .stalls = 40, .wait_ns = 2 * kSecond});
  CHECK(has(explain_run(figures)[3], "stood 40 times, 2.0 s, because the connection took no more"));
}

TEST_CASE("Launches that wait have a setting that makes them") {
  RunFigures figures = run();
  add(figures, {.name = "cuLaunchKernel", .waits = 2000, .wait_ns = 2 * kSecond});
  CHECK(has(explain_run(figures)[3], "CUDA_LAUNCH_BLOCKING"));
}

TEST_CASE("Starting is counted by what it took, also in the queue, without a wait for a reply") {
  RunFigures figures = run();
  figures.calls.push_back({.name = "cuInit", .ns = kSecond});
  figures.calls.push_back({.name = "cuDriverGetVersion", .ns = 5 * kSecond});  // the first query connects, too
  CHECK(has(explain_run(figures)[3], "starting (cuInit) took 6.0 s"));
}

TEST_CASE("A program whose waits are few is told that nothing is to be gained") {
  RunFigures figures = run();
  add(figures, {.name = "cuMemcpyDtoH_v2", .waits = 10, .wait_ns = kSecond / 100});
  auto lines = explain_run(figures);
  CHECK(has(lines[3], "change nothing"));
  CHECK(has(lines[4], "nothing else is to be gained"));
}

TEST_CASE("A function without a row of its own is named as it is") {
  RunFigures figures = run();
  add(figures, {.name = "cuPointerGetAttributes", .waits = 99, .wait_ns = kSecond});
  CHECK(has(explain_run(figures)[3], "cuPointerGetAttributes waited 99 times, 1.0 s: ask once"));
}

TEST_CASE("Questions about occupancy are counted together, and the next program asks them at once") {
  RunFigures figures = run();
  add(figures, {.name = "cuOccupancyMaxActiveClusters", .waits = 90, .wait_ns = kSecond / 2});
  add(figures, {.name = "cuOccupancyAvailableDynamicSMemPerBlock", .waits = 9, .wait_ns = kSecond / 2});
  CHECK(has(explain_run(figures)[3], "asking about occupancy waited 99 times, 1.0 s: libraries learn the card"));
}
