// Work is timed by CUPTI's records if CUPTI works, else by events, and the client is told the method.
#include <doctest/doctest.h>

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#if __has_include(<cupti.h>)
#include <cupti.h>
#endif

#include "server/profiler/gpu_profiler.hpp"
#include "server/software_device/driver/stream/work_observer.hpp"
#include "test/server/profiler/clocked_gpu.hpp"

namespace gpuwire::server {
namespace {

using software_device::ObservedWork;
using test::ClockedGpu;
using test::told;
using test::Told;

constexpr uint64_t kKernelNs = 700;  // by the fake CUPTI, where events say 3 ms

// A profiler with the fake CUPTI (fake_cupti.cpp).
struct Fixture {
  ClockedGpu gpu;
  HandleTable handles;
  test::FakeOutbox outbox;
  std::vector<std::string> notes;
  GpuProfiler profiler;
  uint64_t sequence = 0;
  bool foreign = false;  // the next launch is the worker's own
  std::vector<ObservedWork> later;
  bool hold = false;  // work ends in finish()

  uint64_t (*given)() = nullptr;
  void (*done)(const ObservedWork*) = nullptr;

  explicit Fixture(const std::string& library = GPUWIRE_TEST_FAKE_CUPTI)
      : profiler(gpu.table, {.cupti = library, .software = true, .note = [this](std::string text) {
                               notes.push_back(std::move(text));
                             }}) {
    void* fake = ::dlopen(GPUWIRE_TEST_FAKE_CUPTI, RTLD_NOW);
    REQUIRE(fake);
    given = reinterpret_cast<uint64_t (*)()>(::dlsym(fake, "fake_cupti_given"));
    done = reinterpret_cast<void (*)(const ObservedWork*)>(::dlsym(fake, "fake_cupti_done"));
    REQUIRE((given && done));
    gpu.on_launch = [this] {
      const uint64_t now = profiler.now_ns();
      ObservedWork work{.kind = software_device::kObservedKernel,
                        .number = given(),
                        .start_ns = now,
                        .end_ns = now + kKernelNs,
                        .bytes = 0,
                        .name = "by_cupti"};
      if (hold) later.push_back(work);
      else done(&work);
    };
    profiler.frames_from([this] { return Profiler::Frame{7, sequence}; });
  }
  ~Fixture() { ::unsetenv("GPUWIRE_FAKE_CUPTI"); }

  void begin(const char* goes_wrong = "") {
    ::setenv("GPUWIRE_FAKE_CUPTI", goes_wrong, 1);
    REQUIRE(profiler.begin(handles, outbox) == CUDA_SUCCESS);
  }
  CUresult launch(uintptr_t function = 1) {
    ++sequence;
    return gpu.table.cuLaunchKernel(ClockedGpu::pointer<CUfunction>(function), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr,
                                    nullptr);
  }
  void finish() {
    for (const ObservedWork& work : later) done(&work);
    later.clear();
  }
  bool by_events() { return told(outbox).method.starts_with("events (no CUPTI: "); }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "CUPTI's times are told with the frames that gave the work, and no event is recorded") {
  begin();
  profiler.name_function(ClockedGpu::pointer<void*>(1), "add");
  for (int i = 0; i < 5; ++i) REQUIRE(launch() == CUDA_SUCCESS);
  const auto totals = profiler.end();
  CHECK(totals.timed == 5);
  CHECK(totals.dropped == 0);
  CHECK(gpu.recorded == 0);
  const Told all = told(outbox);
  CHECK(all.method == "CUPTI 13.0");
  REQUIRE(all.spans.size() == 5);
  for (size_t i = 0; i < 5; ++i) {
    CHECK(all.spans[i].kind == uint32_t(SpanKind::kernel));
    CHECK(all.names[all.spans[i].name] == "add");
    CHECK(all.spans[i].context == 7);
    CHECK(all.spans[i].sequence == i + 1);
    CHECK(all.spans[i].end_ns - all.spans[i].start_ns == kKernelNs);
  }
  CHECK(notes.empty());
}

TEST_CASE_FIXTURE(Fixture, "a kernel that the driver has no name for has CUPTI's") {
  gpu.table.cuFuncGetName = nullptr;
  begin();
  REQUIRE(launch() == CUDA_SUCCESS);
  REQUIRE(launch() == CUDA_SUCCESS);
  profiler.end();
  const Told all = told(outbox);
  REQUIRE(all.spans.size() == 2);
  CHECK(all.names[all.spans[0].name] == "by_cupti");
  CHECK(all.spans[1].name == all.spans[0].name);
}

TEST_CASE_FIXTURE(Fixture, "work that ends in another order than it was given keeps its frames") {
  begin();
  hold = true;
  for (int i = 0; i < 100; ++i) REQUIRE(launch() == CUDA_SUCCESS);
  std::reverse(later.begin(), later.end());
  finish();
  CHECK(profiler.end().dropped == 0);
  const Told all = told(outbox);
  REQUIRE(all.spans.size() == 100);
  CHECK(all.spans.front().sequence == 100);
  CHECK(all.spans.back().sequence == 1);
}

TEST_CASE_FIXTURE(Fixture, "a piece of work whose records lie in several buffers keeps its frame") {
  begin("full=1");
  constexpr int kLaunches = int(kCuptiBuffersMax) / 3;  // of three records each
  for (int i = 0; i < kLaunches; ++i) REQUIRE(launch() == CUDA_SUCCESS);
  const auto totals = profiler.end();
  CHECK(totals.timed == kLaunches);
  CHECK(totals.dropped == 0);
  uint64_t frames = 0;
  for (const auto& span : told(outbox).spans) CHECK(span.sequence == ++frames);
}

TEST_CASE_FIXTURE(Fixture, "records without a buffer are counted") {
  begin("full=3");
  for (int i = 0; i < 1000; ++i) REQUIRE(launch() == CUDA_SUCCESS);
  const auto totals = profiler.end();
  CHECK(totals.timed + totals.dropped == 1000);
  CHECK(told(outbox).spans.size() == totals.timed);
  CHECK(totals.timed > 0);
}

TEST_CASE_FIXTURE(Fixture, "a launch that the driver refuses is no span, and is not waited for") {
  begin();
  gpu.refuse_launches = true;
  CHECK(launch() == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  const auto totals = profiler.end();
  CHECK(totals.timed == 0);
  CHECK(totals.dropped == 0);
}

TEST_CASE_FIXTURE(Fixture, "work that is captured is none yet") {
  begin();
  gpu.capturing = true;
  REQUIRE(launch() == CUDA_SUCCESS);
  gpu.capturing = false;
  const auto totals = profiler.end();
  CHECK(totals.timed == 0);  // CUPTI has a record of the launch, as of launches by other threads
  CHECK(totals.dropped == 0);
}

TEST_CASE_FIXTURE(Fixture, "records that CUPTI drops are counted, and all others are told") {
  begin("lose=4");
  for (int i = 0; i < 10; ++i) REQUIRE(launch() == CUDA_SUCCESS);
  const auto totals = profiler.end();
  CHECK(totals.timed == 8);
  CHECK(totals.dropped == 2);
}

TEST_CASE_FIXTURE(Fixture, "records with times that cannot be are counted and not told") {
  begin("timeless=5");
  for (int i = 0; i < 10; ++i) REQUIRE(launch() == CUDA_SUCCESS);
  const auto totals = profiler.end();
  CHECK(totals.timed == 6);
  CHECK(totals.dropped == 4);
  for (const auto& span : told(outbox).spans) CHECK(span.end_ns > span.start_ns);
}

TEST_CASE_FIXTURE(Fixture, "records before a damaged one in a buffer are reported, and the others are counted") {
  begin("damage=6,full=10");
  for (int i = 0; i < 30; ++i) REQUIRE(launch() == CUDA_SUCCESS);
  const auto totals = profiler.end();
  CHECK(totals.timed + totals.dropped == 30);
  CHECK(totals.timed > 0);
  CHECK(totals.dropped > 0);
}

TEST_CASE_FIXTURE(Fixture, "work that has not ended with the session is counted, and told no more") {
  begin();
  hold = true;
  REQUIRE(launch() == CUDA_SUCCESS);
  const auto totals = profiler.end();
  CHECK(totals.timed == 0);
  CHECK(totals.dropped == 1);
  finish();
  profiler.stop();
  CHECK(told(outbox).spans.empty());
}

TEST_CASE_FIXTURE(Fixture, "work without records of CUPTI is timed by events beside it") {
  gpu.table.cuMemPrefetchAsync_v2 = [](CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream) { return CUDA_SUCCESS; };
  begin();
  REQUIRE(gpu.table.cuMemPrefetchAsync_v2(1, 4096, {}, 0, nullptr) == CUDA_SUCCESS);
  REQUIRE(launch() == CUDA_SUCCESS);
  const auto totals = profiler.end();
  CHECK(totals.timed == 2);
  CHECK(totals.dropped == 0);
  CHECK(gpu.recorded > 0);
}

TEST_CASE("a CUPTI that refuses leaves events, with its reason") {
  struct Refusal {
    const char* goes_wrong;
    const char* reason;
  };
  for (const auto& [goes_wrong, reason] : {
           Refusal{"refuse=10:35", "CUPTI 13.0: kernels: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"},
           Refusal{"refuse=39:39",
                   "CUPTI 13.0: external correlations: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"},
           Refusal{"refuse=51:7", "CUPTI 13.0: graphs: error 7"},
           Refusal{"version=17", "is of an API version that gpuwire does not know, 17"},
           Refusal{"version=140000", "is of an API version that gpuwire does not know, 140000"},
       }) {
    CAPTURE(goes_wrong);
    Fixture at;
    at.begin(goes_wrong);
    REQUIRE(at.launch() == CUDA_SUCCESS);
    const auto totals = at.profiler.end();
    CHECK(totals.timed == 1);
    CHECK(totals.dropped == 0);
    CHECK(at.gpu.recorded >= 2);
    CHECK(at.by_events());
    CHECK(told(at.outbox).method.find(reason) != std::string::npos);
    REQUIRE(at.notes.size() == 1);
    CHECK(at.notes[0].find(reason) != std::string::npos);
  }
}

TEST_CASE("a library that is not there, or is none, leaves events, with the reason") {
  for (const auto& [path, reason] : {std::pair{"/nowhere/libcupti.so", "No such file"},
                                     std::pair{"libm.so.6", "libm.so.6 has no cuptiGetVersion"}}) {
    Fixture at(path);
    at.begin();
    REQUIRE(at.launch() == CUDA_SUCCESS);
    CHECK(at.profiler.end().timed == 1);
    CHECK(at.by_events());
    CHECK(told(at.outbox).method.find(reason) != std::string::npos);
    CHECK(at.notes.size() == 1);
  }
}

TEST_CASE("on a software device no CUPTI is looked for, and one that is off is not opened") {
  for (const auto& [setting, method] : {std::pair{cupti::kAuto, "events (CUPTI knows no software device)"},
                                        std::pair{cupti::kOff, "events (CUPTI is off on this server)"}}) {
    Fixture at(setting);
    at.begin();
    at.profiler.end();
    CHECK(told(at.outbox).method == method);
    CHECK(at.notes.empty());
  }
}

TEST_CASE("versions of CUPTI have the names of their toolkits, and those with records of unknown form have none") {
  CHECK(cupti::name_of(17).empty());
  CHECK(cupti::name_of(18) == "CUPTI 11.8");
  CHECK(cupti::name_of(24) == "CUPTI 12.6");
  CHECK(cupti::name_of(28) == "CUPTI 12.9");
  CHECK(cupti::name_of(29).empty());
  CHECK(cupti::name_of(130'001) == "CUPTI 13.0");
  CHECK(cupti::name_of(130'200) == "CUPTI 13.2");
  CHECK(cupti::name_of(140'000).empty());
}

TEST_CASE("no CUPTI is looked for that is newer than the driver") {
  const auto newest = cupti::candidates(13'000), older = cupti::candidates(12'080);
  CHECK(newest.front() == "libcupti.so.13");
  CHECK(older.front() == "libcupti.so.12");
  for (const std::string& path : older) CHECK_FALSE(path.ends_with(".13"));
}

#if __has_include(<cupti.h>)
TEST_CASE("the declarations of CUPTI are those of its header") {
  using namespace cupti;
#define SAME(ours, field, theirs, their_field)                            \
  static_assert(offsetof(ours, field) == offsetof(theirs, their_field) && \
                sizeof(ours::field) == sizeof(std::declval<theirs&>().their_field))
#define SAME_TIMES(ours, theirs)    \
  SAME(ours, kind, theirs, kind);   \
  SAME(ours, start, theirs, start); \
  SAME(ours, end, theirs, end);     \
  SAME(ours, correlation, theirs, correlationId)
  // Against the oldest supported version and the newest known one.
  SAME_TIMES(KernelActivity, CUpti_ActivityKernel8);
  SAME(KernelActivity, name, CUpti_ActivityKernel8, name);
  SAME_TIMES(CopyActivity, CUpti_ActivityMemcpy5);
  SAME_TIMES(PeerCopyActivity, CUpti_ActivityMemcpyPtoP4);
  SAME_TIMES(MemsetActivity, CUpti_ActivityMemset4);
  SAME_TIMES(GraphActivity, CUpti_ActivityGraphTrace);
#if CUPTI_API_VERSION >= 130000
  SAME_TIMES(KernelActivity, CUpti_ActivityKernel10);
  SAME(KernelActivity, name, CUpti_ActivityKernel10, name);
  SAME_TIMES(CopyActivity, CUpti_ActivityMemcpy6);
  SAME_TIMES(GraphActivity, CUpti_ActivityGraphTrace2);
#endif
  SAME(ExternalCorrelationActivity, kind, CUpti_ActivityExternalCorrelation, kind);
  SAME(ExternalCorrelationActivity, external_kind, CUpti_ActivityExternalCorrelation, externalKind);
  SAME(ExternalCorrelationActivity, external, CUpti_ActivityExternalCorrelation, externalId);
  SAME(ExternalCorrelationActivity, correlation, CUpti_ActivityExternalCorrelation, correlationId);
#undef SAME_TIMES
#undef SAME
  CHECK(uint32_t(kMemcpy) == CUPTI_ACTIVITY_KIND_MEMCPY);
  CHECK(uint32_t(kMemset) == CUPTI_ACTIVITY_KIND_MEMSET);
  CHECK(uint32_t(kDriver) == CUPTI_ACTIVITY_KIND_DRIVER);
  CHECK(uint32_t(kConcurrentKernel) == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  CHECK(uint32_t(kMemcpyPeer) == CUPTI_ACTIVITY_KIND_MEMCPY2);
  CHECK(uint32_t(kExternalCorrelation) == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
  CHECK(uint32_t(kGraphTrace) == CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
  CHECK(kFlushForced == CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  CHECK(kCorrelationCustom0 == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0);
  CHECK(kDeviceBufferPoolLimit == CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT);
  CHECK(kMaxLimitReached == CUPTI_ERROR_MAX_LIMIT_REACHED);
  const uint32_t without_records[] = {
      CUPTI_DRIVER_TRACE_CBID_cuEventRecord,       CUPTI_DRIVER_TRACE_CBID_cuEventQuery,
      CUPTI_DRIVER_TRACE_CBID_cuEventElapsedTime,  CUPTI_DRIVER_TRACE_CBID_cuStreamQuery,
      CUPTI_DRIVER_TRACE_CBID_cuCtxSetCurrent,     CUPTI_DRIVER_TRACE_CBID_cuCtxGetCurrent,
      CUPTI_DRIVER_TRACE_CBID_cuStreamIsCapturing, 780};
  CHECK(std::ranges::equal(kCallsWithoutRecords, without_records));
}
#endif

}  // namespace gpuwire::server
