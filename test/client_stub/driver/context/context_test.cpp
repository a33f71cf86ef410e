#include <thread>

#include "client/hand.hpp"
#include "client_stub/driver/call/caller.hpp"
#include "test/client_stub/driver/fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::client;
using test::FakeProcess;

namespace {

CUcontext primary_of(int device) { return as_cuda(process()->device(device)->primary); }

CUcontext retained(int device) {
  CUcontext context = nullptr;
  REQUIRE(hand::cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
  return context;
}

CUcontext current() {
  CUcontext context = nullptr;
  REQUIRE(hand::cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  return context;
}

}  // namespace

TEST_CASE("before the driver is initialised calls say so") {
  CUcontext context = nullptr;
  int count = 0;
  CHECK(hand::cuCtxGetCurrent(&context) == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(hand::cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(enter(Needs::context).error == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(enter(Needs::initialised).error == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(enter(Needs::nothing).error == CUDA_SUCCESS);
}

TEST_CASE("a primary context may be made current before it is retained, and works from then on") {
  FakeProcess fake;
  CHECK(enter(Needs::context).error == CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(hand::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  CHECK(current() == primary_of(0));
  CHECK(enter(Needs::context).error == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  unsigned flags = 1;
  int active = 1;
  CHECK(hand::cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
  CHECK(fake.session->total() == 0);

  CHECK(retained(0) == primary_of(0));
  CHECK(fake.session->count(uint32_t(wire::SessionOrdinal::retain_primary)) == 1);
  Caller caller = enter(Needs::context);
  CHECK(caller.error == CUDA_SUCCESS);
  CHECK(caller.context != 0);
  CHECK(caller.context == uint32_t(reinterpret_cast<uint64_t>(primary_of(0))));
  CHECK(hand::cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 1);
}

TEST_CASE("only the first retain and the last release of a primary context are sent") {
  FakeProcess fake;
  retained(0);
  retained(0);
  CHECK(hand::cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(fake.session->count(uint32_t(wire::SessionOrdinal::release_primary)) == 0);
  CHECK(hand::cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(fake.session->count(uint32_t(wire::SessionOrdinal::retain_primary)) == 1);
  CHECK(fake.session->count(uint32_t(wire::SessionOrdinal::release_primary)) == 1);
  CHECK(hand::cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(retained(0) == primary_of(0));
  CHECK(hand::cuDevicePrimaryCtxRelease_v2(7) == CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("each thread has its own stack of contexts") {
  FakeProcess fake(2);
  retained(0);
  retained(1);
  REQUIRE(hand::cuCtxPushCurrent_v2(primary_of(0)) == CUDA_SUCCESS);
  REQUIRE(hand::cuCtxPushCurrent_v2(primary_of(1)) == CUDA_SUCCESS);
  std::thread([] {
    CHECK(current() == nullptr);
    CHECK(hand::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
    CHECK(current() == primary_of(0));
  }).join();
  CUdevice device = -1;
  CHECK(hand::cuCtxGetDevice(&device) == CUDA_SUCCESS);
  CHECK(device == 1);
  CUcontext popped = nullptr;
  CHECK(hand::cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS);
  CHECK(popped == primary_of(1));
  CHECK(current() == primary_of(0));
  // Setting replaces the top, and setting NULL takes it off.
  CHECK(hand::cuCtxSetCurrent(primary_of(1)) == CUDA_SUCCESS);
  CHECK(current() == primary_of(1));
  CHECK(hand::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(current() == nullptr);
  CHECK(hand::cuCtxPopCurrent_v2(&popped) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(hand::cuCtxGetDevice(&device) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(hand::cuCtxSetCurrent(reinterpret_cast<CUcontext>(0x1234)) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("a destroyed context may still stand in the stack, and its calls say that it is destroyed") {
  FakeProcess fake;
  CUcontext context = nullptr;
  REQUIRE(hand::cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
  CHECK(current() == context);
  REQUIRE(hand::cuCtxPushCurrent_v2(context) == CUDA_SUCCESS);
  REQUIRE(hand::cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  // The top went with the context, the copy below did not.
  CHECK(current() == context);
  CHECK(enter(Needs::context).error == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(hand::cuCtxDestroy_v2(context) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(hand::cuCtxPopCurrent_v2(nullptr) == CUDA_SUCCESS);
  CHECK(current() == nullptr);
}

TEST_CASE("streams and events go with their context") {
  FakeProcess fake;
  CUcontext context = nullptr;
  REQUIRE(hand::cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  CUevent event = nullptr;
  REQUIRE(hand::cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  REQUIRE(hand::cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(hand::cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  CHECK(hand::cuStreamQuery(stream, false) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(hand::cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("after a fault either that or what is wrong with the arguments comes first, as the driver has it") {
  FakeProcess fake;
  retained(0);
  REQUIRE(hand::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  REQUIRE(hand::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const CUresult fault = leave(enter(Needs::context), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(enter(Needs::context).error == fault);
  const Caller asking = enter(Needs::living_context);
  CHECK(asking.error == CUDA_SUCCESS);
  CHECK(asking.state == t_context);
  int priority = 0;
  CHECK(hand::cuStreamGetPriority(stream, &priority, false) == fault);
  CHECK(hand::cuStreamGetPriority(stream, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  unsigned long long id = 0;
  CHECK(hand::cuStreamGetId(stream, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(hand::cuCtxGetId(nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(hand::cuCtxGetId(primary_of(0), &id) == CUDA_SUCCESS);
  CHECK(hand::cuFuncSetBlockShape(nullptr, 1, 0, 1) == fault);
  CHECK(hand::cuFuncSetCacheConfig(nullptr, CU_FUNC_CACHE_PREFER_L1) == CUDA_ERROR_INVALID_HANDLE);
  // The server's driver has the word.
  const size_t sent = fake.session->total();
  CHECK(hand::cuCtxSetFlags(CU_CTX_SCHED_SPIN) == CUDA_SUCCESS);
  CHECK(fake.session->total() == sent + 1);
}

TEST_CASE("a sticky error stays with its context alone") {
  FakeProcess fake(2);
  retained(0);
  retained(1);
  REQUIRE(hand::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  Caller caller = enter(Needs::context);
  CHECK(leave(caller, CUDA_ERROR_INVALID_VALUE) == CUDA_ERROR_INVALID_VALUE);
  CHECK(enter(Needs::context).error == CUDA_SUCCESS);
  CHECK(leave(caller, CUDA_ERROR_ILLEGAL_ADDRESS) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(enter(Needs::context).error == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(hand::cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdevice device = -1;
  CHECK(hand::cuCtxGetDevice(&device) == CUDA_SUCCESS);
  REQUIRE(hand::cuCtxSetCurrent(primary_of(1)) == CUDA_SUCCESS);
  CHECK(enter(Needs::context).error == CUDA_SUCCESS);
  // What H200s do, see examples/errors.expected: the reset succeeds, and the process gets no new context on any device.
  CHECK(hand::cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CUcontext lost = nullptr;
  CHECK(hand::cuDevicePrimaryCtxRetain(&lost, 0) == CUDA_ERROR_DEVICE_UNAVAILABLE);
  CHECK(hand::cuDevicePrimaryCtxReset_v2(1) == CUDA_SUCCESS);
  CHECK(hand::cuDevicePrimaryCtxRetain(&lost, 1) == CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST_CASE("a deferred error surfaces once") {
  FakeProcess fake;
  retained(0);
  REQUIRE(hand::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  t_context->deferred = CUDA_ERROR_INVALID_HANDLE;
  Caller caller = enter(Needs::context);
  REQUIRE(caller.error == CUDA_SUCCESS);
  CHECK(leave(caller, CUDA_SUCCESS) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(leave(caller, CUDA_SUCCESS) == CUDA_SUCCESS);
}

TEST_CASE("a context with nothing outstanding is synchronised without the server") {
  FakeProcess fake;
  retained(0);
  REQUIRE(hand::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  size_t before = fake.session->total();
  CHECK(hand::cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(fake.session->total() == before);
  note_stream_work(enter(Needs::context), 0, 10);
  CHECK(hand::cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(fake.session->total() == before + 1);
  CHECK(hand::cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(fake.session->total() == before + 1);
}

TEST_CASE("limits are known from the start, and a limit that was set is what the server made of it") {
  FakeProcess fake;
  retained(0);
  REQUIRE(hand::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  size_t value = 0, before = fake.session->total();
  CHECK(hand::cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS);
  CHECK(value == 4096);
  CHECK(hand::cuCtxGetLimit(&value, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH) == CUDA_ERROR_UNSUPPORTED_LIMIT);
  CHECK(hand::cuCtxGetLimit(&value, CUlimit(CU_LIMIT_MAX)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(fake.session->total() == before);
}

TEST_CASE("when the session has ended every call says with what") {
  FakeProcess fake;
  retained(0);
  REQUIRE(hand::cuCtxSetCurrent(primary_of(0)) == CUDA_SUCCESS);
  fake.session->end_with(CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(enter(Needs::context).error == CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(hand::cuCtxSynchronize() == CUDA_ERROR_SYSTEM_NOT_READY);
  CUstream stream = nullptr;
  CHECK(hand::cuStreamCreate(&stream, 0) == CUDA_ERROR_SYSTEM_NOT_READY);
}
