#include <atomic>
#include <latch>
#include <random>
#include <thread>
#include <vector>

#include "client/custom.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "protocol/cuda_abi/private_tables.hpp"
#include "test/client_stub/driver/fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::client;
using test::FakeProcess;

namespace {

constexpr uint32_t kMemGetInfo = 1804;

CUcontext primary_of(int device) { return as_cuda(process()->device(device)->primary); }

CUcontext retained(int device) {
  CUcontext context = nullptr;
  REQUIRE(custom::cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
  return context;
}

CUcontext current() {
  CUcontext context = nullptr;
  REQUIRE(custom::cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  return context;
}

}  // namespace

TEST_CASE("before the driver is initialised calls say so") {
  CUcontext context = nullptr;
  int count = 0;
  CHECK(custom::cuCtxGetCurrent(&context) == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(custom::cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
  CUmoduleLoadingMode mode;
  CHECK(custom::cuModuleGetLoadingMode(&mode) == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(enter(Needs::context).error == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(enter(Needs::initialised).error == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(enter(Needs::nothing).error == CUDA_SUCCESS);
}

TEST_CASE("a primary context may be made current before it is retained, and works from then on") {
  FakeProcess fake;
  CHECK(enter(Needs::context).error == CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(custom::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  CHECK(current() == primary_of(0));
  CHECK(enter(Needs::context).error == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  unsigned flags = 1;
  int active = 1;
  CHECK(custom::cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
  CHECK(fake.session->total() == 0);

  CHECK(retained(0) == primary_of(0));
  CHECK(fake.session->count(uint32_t(wire::SessionOrdinal::retain_primary)) == 1);
  Caller caller = enter(Needs::context);
  CHECK(caller.error == CUDA_SUCCESS);
  CHECK(caller.context != 0);
  CHECK(caller.context == uint32_t(reinterpret_cast<uint64_t>(primary_of(0))));
  CHECK(custom::cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 1);
}

TEST_CASE("only the first retain and the last release of a primary context are sent") {
  FakeProcess fake;
  retained(0);
  retained(0);
  CHECK(custom::cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(fake.session->count(uint32_t(wire::SessionOrdinal::release_primary)) == 0);
  CHECK(custom::cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(fake.session->count(uint32_t(wire::SessionOrdinal::retain_primary)) == 1);
  CHECK(fake.session->count(uint32_t(wire::SessionOrdinal::release_primary)) == 1);
  CHECK(custom::cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(retained(0) == primary_of(0));
  CHECK(custom::cuDevicePrimaryCtxRelease_v2(7) == CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("each thread has its own stack of contexts") {
  FakeProcess fake(2);
  retained(0);
  retained(1);
  REQUIRE(custom::cuCtxPushCurrent_v2(primary_of(0)) == CUDA_SUCCESS);
  REQUIRE(custom::cuCtxPushCurrent_v2(primary_of(1)) == CUDA_SUCCESS);
  std::thread([] {
    CHECK(current() == nullptr);
    CHECK(custom::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
    CHECK(current() == primary_of(0));
  }).join();
  CUdevice device = -1;
  CHECK(custom::cuCtxGetDevice(&device) == CUDA_SUCCESS);
  CHECK(device == 1);
  CUcontext popped = nullptr;
  CHECK(custom::cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS);
  CHECK(popped == primary_of(1));
  CHECK(current() == primary_of(0));
  // cuCtxSetCurrent replaces the top of the stack, and NULL removes it.
  CHECK(custom::cuCtxSetCurrent(primary_of(1)) == CUDA_SUCCESS);
  CHECK(current() == primary_of(1));
  CHECK(custom::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(current() == nullptr);
  CHECK(custom::cuCtxPopCurrent_v2(&popped) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(custom::cuCtxGetDevice(&device) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(custom::cuCtxSetCurrent(reinterpret_cast<CUcontext>(0x1234)) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("a destroyed context may still stand in the stack, and its calls say that it is destroyed") {
  FakeProcess fake;
  CUcontext context = nullptr;
  REQUIRE(custom::cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
  CHECK(current() == context);
  REQUIRE(custom::cuCtxPushCurrent_v2(context) == CUDA_SUCCESS);
  REQUIRE(custom::cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  // The destruction removed the top of the stack, but not the copy below it.
  CHECK(current() == context);
  CHECK(enter(Needs::context).error == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(custom::cuCtxDestroy_v2(context) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(custom::cuCtxPopCurrent_v2(nullptr) == CUDA_SUCCESS);
  CHECK(current() == nullptr);
}

TEST_CASE("streams and events go with their context") {
  FakeProcess fake;
  CUcontext context = nullptr;
  REQUIRE(custom::cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  CUevent event = nullptr;
  REQUIRE(custom::cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  REQUIRE(custom::cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(custom::cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("after a fault either that or what is wrong with the arguments comes first, as the driver has it") {
  FakeProcess fake;
  retained(0);
  REQUIRE(custom::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  REQUIRE(custom::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const CUresult fault = leave(enter(Needs::context), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(enter(Needs::context).error == fault);
  const Caller asking = enter(Needs::living_context);
  CHECK(asking.error == CUDA_SUCCESS);
  CHECK(asking.state == t_context);
  int priority = 0;
  CHECK(custom::cuStreamGetPriority(stream, &priority, false) == fault);
  CHECK(custom::cuStreamGetPriority(stream, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  unsigned long long id = 0;
  CHECK(custom::cuStreamGetId(stream, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuCtxGetId(nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuCtxGetId(primary_of(0), &id) == CUDA_SUCCESS);
  CHECK(custom::cuFuncSetBlockShape(nullptr, 1, 0, 1) == fault);
  CHECK(custom::cuFuncSetCacheConfig(nullptr, CU_FUNC_CACHE_PREFER_L1) == CUDA_ERROR_INVALID_HANDLE);
  // The server's driver decides.
  const size_t sent = fake.session->total();
  CHECK(custom::cuCtxSetFlags(CU_CTX_SCHED_SPIN) == CUDA_SUCCESS);
  CHECK(fake.session->total() == sent + 1);
}

TEST_CASE("After a fault the server is asked once of each other context of the device whether it is faulty, too") {
  FakeProcess fake;
  retained(0);
  CUcontext other = nullptr;
  REQUIRE(custom::cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  REQUIRE(custom::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  CHECK(leave(enter(Needs::context), CUDA_ERROR_ILLEGAL_ADDRESS) == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(custom::cuCtxSetCurrent(other) == CUDA_SUCCESS);
  const size_t before = fake.session->total();
  SUBCASE("the driver says that it is well") {
    CHECK(custom::cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(fake.session->total() == before + 1);
    CHECK(custom::cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(fake.session->total() == before + 1);
  }
  SUBCASE("the driver says that it is not") {
    fake.session->answer_with(kMemGetInfo, CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(custom::cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(custom::cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(fake.session->total() == before + 1);
  }
}

TEST_CASE("a sticky error stays with the contexts of its device") {
  FakeProcess fake(2);
  retained(0);
  retained(1);
  REQUIRE(custom::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  Caller caller = enter(Needs::context);
  CHECK(leave(caller, CUDA_ERROR_INVALID_VALUE) == CUDA_ERROR_INVALID_VALUE);
  CHECK(enter(Needs::context).error == CUDA_SUCCESS);
  CHECK(leave(caller, CUDA_ERROR_ILLEGAL_ADDRESS) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(enter(Needs::context).error == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(custom::cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdevice device = -1;
  CHECK(custom::cuCtxGetDevice(&device) == CUDA_SUCCESS);
  REQUIRE(custom::cuCtxSetCurrent(primary_of(1)) == CUDA_SUCCESS);
  CHECK(enter(Needs::context).error == CUDA_SUCCESS);
  // As on H200s (examples/errors.expected), the reset succeeds, and the process gets no new context on any device.
  CHECK(custom::cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CUcontext lost = nullptr;
  CHECK(custom::cuDevicePrimaryCtxRetain(&lost, 0) == CUDA_ERROR_DEVICE_UNAVAILABLE);
  CHECK(custom::cuDevicePrimaryCtxReset_v2(1) == CUDA_SUCCESS);
  CHECK(custom::cuDevicePrimaryCtxRetain(&lost, 1) == CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST_CASE("a deferred error surfaces once") {
  FakeProcess fake;
  retained(0);
  REQUIRE(custom::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  t_context->deferred = CUDA_ERROR_INVALID_HANDLE;
  Caller caller = enter(Needs::context);
  REQUIRE(caller.error == CUDA_SUCCESS);
  CHECK(leave(caller, CUDA_SUCCESS) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(leave(caller, CUDA_SUCCESS) == CUDA_SUCCESS);
}

TEST_CASE("a context with nothing outstanding is synchronised without the server") {
  FakeProcess fake;
  retained(0);
  REQUIRE(custom::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  size_t before = fake.session->total();
  CHECK(custom::cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(fake.session->total() == before);
  note_stream_work(enter(Needs::context), 0, 10);
  CHECK(custom::cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(fake.session->total() == before + 1);
  CHECK(custom::cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(fake.session->total() == before + 1);
}

TEST_CASE("limits are known from the start, and a limit that was set is what the server made of it") {
  FakeProcess fake;
  retained(0);
  REQUIRE(custom::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  size_t value = 0, before = fake.session->total();
  CHECK(custom::cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS);
  CHECK(value == 4096);
  CHECK(custom::cuCtxGetLimit(&value, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH) == CUDA_ERROR_UNSUPPORTED_LIMIT);
  CHECK(custom::cuCtxGetLimit(&value, CUlimit(CU_LIMIT_MAX)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(fake.session->total() == before);
}

TEST_CASE("when the session has ended every call says with what") {
  FakeProcess fake;
  retained(0);
  REQUIRE(custom::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  fake.session->end_with(CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(enter(Needs::context).error == CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(custom::cuCtxSynchronize() == CUDA_ERROR_SYSTEM_NOT_READY);
  CUstream stream = nullptr;
  CHECK(custom::cuStreamCreate(&stream, 0) == CUDA_ERROR_SYSTEM_NOT_READY);
}

namespace {

// Checks the primary context's state at the server after each of the session's frames, in order.
void check_order(const FakeProcess& fake) {
  const auto number = uint32_t(reinterpret_cast<uint64_t>(primary_of(0)));
  bool alive = false;
  size_t wrong = 0;
  for (const test::SentFrame& frame : fake.session->frames()) {
    const bool begins = frame.ordinal == uint32_t(wire::SessionOrdinal::retain_primary);
    const bool ends = frame.ordinal == uint32_t(wire::SessionOrdinal::release_primary) ||
                      frame.ordinal == uint32_t(wire::SessionOrdinal::reset_primary);
    wrong += begins && alive;
    wrong += (ends || frame.context == number) && !alive;
    if (begins || ends) alive = begins;
  }
  CHECK(wrong == 0);
  int active = 1;
  unsigned flags = 0;
  CHECK(custom::cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(alive == (active != 0));
}

// A callback of a context, as libraries register them; called before the context ends.
void let_others_run(CUcontext, void*, void*) { std::this_thread::yield(); }

}  // namespace

TEST_CASE("whoever holds the primary context can use it while other threads retain and release it") {
  constexpr uint32_t kSeed = 20261128;
  constexpr int kThreads = 3, kRounds = 4000;  // few, so that the last one releases it often
  MESSAGE("seed ", kSeed);
  FakeProcess fake;
  static thread_local std::minstd_rand random;
  fake.session->before_frames([](uint32_t) {
    for (auto times = random() % 4; times > 0; --times) std::this_thread::yield();
  });
  std::atomic<int> refused{0}, dead{0};
  std::latch begin(kThreads);
  auto use = [&](int thread) {
    random.seed(kSeed + uint32_t(thread));
    begin.arrive_and_wait();
    static char keys[kThreads][kRounds];
    for (int round = 0; round < kRounds; ++round) {
      CUcontext context = nullptr;
      CUevent event = nullptr;
      refused += custom::cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS;
      refused += custom::cuCtxSetCurrent(context) != CUDA_SUCCESS;
      cuda_abi::context_local_storage().put(context, &keys[thread][round], nullptr, let_others_run);
      if (random() % 2) std::this_thread::yield();
      dead += custom::cuEventCreate(&event, 0) != CUDA_SUCCESS;
      dead += custom::cuEventDestroy_v2(event) != CUDA_SUCCESS;
      dead += enter(Needs::context).error != CUDA_SUCCESS;
      refused += custom::cuDevicePrimaryCtxRelease_v2(0) != CUDA_SUCCESS;
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(use, thread);
  for (std::thread& thread : threads) thread.join();
  CHECK(refused == 0);
  CHECK(dead == 0);
  check_order(fake);
  CHECK(custom::cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("resets beside retains and releases leave one order, too") {
  constexpr uint32_t kSeed = 20261129;
  constexpr int kThreads = 6, kRounds = 300;
  MESSAGE("seed ", kSeed);
  FakeProcess fake;
  static thread_local std::minstd_rand random;
  fake.session->before_frames([](uint32_t) {
    for (auto times = random() % 4; times > 0; --times) std::this_thread::yield();
  });
  std::atomic<int> refused{0};
  std::latch begin(kThreads);
  auto use = [&](int thread) {
    random.seed(kSeed + uint32_t(thread));
    begin.arrive_and_wait();
    for (int round = 0; round < kRounds; ++round) {
      CUcontext context = nullptr;
      refused += custom::cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS;
      if (random() % 3 == 0) refused += custom::cuDevicePrimaryCtxReset_v2(0) != CUDA_SUCCESS;
      refused += custom::cuDevicePrimaryCtxRelease_v2(0) != CUDA_SUCCESS;
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(use, thread);
  for (std::thread& thread : threads) thread.join();
  CHECK(refused == 0);
  check_order(fake);
}

TEST_CASE("a primary context that is retained while its end is prepared lives on") {
  FakeProcess fake;
  CUcontext context = retained(0);
  static char key;
  cuda_abi::context_local_storage().put(context, &key, nullptr, [](CUcontext, void*, void*) {
    CUcontext again = nullptr;
    CHECK(custom::cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
  });
  CHECK(custom::cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(custom::cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CHECK(enter(Needs::context).error == CUDA_SUCCESS);
  CHECK(fake.session->count(uint32_t(wire::SessionOrdinal::release_primary)) == 0);
  CHECK(custom::cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(fake.session->count(uint32_t(wire::SessionOrdinal::release_primary)) == 1);
  check_order(fake);
}

TEST_CASE("a context that is retained while its end is being sent begins behind that end") {
  constexpr int kPollsMax = 300;
  FakeProcess fake;
  retained(0);
  std::thread other;
  std::atomic<bool> retaining{false}, done{false};
  std::atomic<CUresult> result{CUDA_ERROR_UNKNOWN};
  fake.session->before_frames([&](uint32_t ordinal) {
    if (ordinal != uint32_t(wire::SessionOrdinal::release_primary) || other.joinable()) return;
    other = std::thread([&] {
      retaining = true;
      CUcontext context = nullptr;
      result = custom::cuDevicePrimaryCtxRetain(&context, 0);
      done = true;
      done.notify_all();
    });
    while (!retaining) std::this_thread::yield();
    // The call has to wait; if it did not, it would end soon.
    for (int looks = 0; looks < kPollsMax && !done; ++looks) std::this_thread::yield();
  });
  CHECK(custom::cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  done.wait(false);
  other.join();
  CHECK(result == CUDA_SUCCESS);
  CHECK(custom::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  CHECK(enter(Needs::context).error == CUDA_SUCCESS);
  check_order(fake);
}
