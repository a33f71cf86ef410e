#include "client/custom.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "test/client_stub/driver/fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::client;
using test::FakeProcess;
using wire::SessionOrdinal;

namespace {

struct Fixture {
  FakeProcess fake;
  CUcontext primary = nullptr;
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;

  Fixture() {
    REQUIRE(custom::cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS);
    REQUIRE(custom::cuCtxSetCurrent(primary) == CUDA_SUCCESS);
    REQUIRE(custom::cuGreenCtxCreate(&green, descriptor(), 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
    REQUIRE(custom::cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS);
  }
  static CUdevResourceDesc descriptor() {
    return reinterpret_cast<CUdevResourceDesc>(
        handles().create(wire::HandleKind::device_resource_desc, &test::server_session()));
  }
  CUstream stream_of(CUgreenCtx owner) {
    CUstream stream = nullptr;
    REQUIRE(custom::cuGreenCtxStreamCreate(&stream, owner, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    return stream;
  }
  size_t sent(SessionOrdinal ordinal) { return fake.session->count(uint32_t(ordinal)); }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture,
                  "a green context is a context with its own id, streams and device, which others cannot destroy") {
  unsigned long long id = 0, other = 0;
  CHECK(custom::cuGreenCtxGetId(green, &id) == CUDA_SUCCESS);
  CHECK(custom::cuCtxGetId(context, &other) == CUDA_SUCCESS);
  CHECK(id == other);
  CHECK(custom::cuCtxGetId(primary, &other) == CUDA_SUCCESS);
  CHECK(id != other);
  CHECK(custom::cuCtxDestroy_v2(context) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(custom::cuGreenCtxDestroy(reinterpret_cast<CUgreenCtx>(primary)) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(custom::cuGreenCtxGetId(nullptr, &id) == CUDA_ERROR_INVALID_CONTEXT);

  CUcontext found = nullptr;
  CUgreenCtx found_green = nullptr;
  CUstream stream = stream_of(green);
  CHECK(custom::cuStreamGetCtx(stream, &found, false) == CUDA_SUCCESS);
  CHECK(found == context);
  CHECK(custom::cuStreamGetCtx_v2(stream, &found, &found_green, false) == CUDA_SUCCESS);
  CHECK(found == primary);
  CHECK(found_green == green);
  CHECK(custom::cuStreamGetGreenCtx(nullptr, &found_green) == CUDA_SUCCESS);
  CHECK(found_green == nullptr);
}

TEST_CASE_FIXTURE(Fixture, "frames of a green context name it, and what they make is the primary context's") {
  REQUIRE(custom::cuCtxSetCurrent(context) == CUDA_SUCCESS);
  Caller caller = enter(Needs::context);
  CHECK(caller.context == uint32_t(reinterpret_cast<uint64_t>(context)));
  CHECK(caller.context_handle == reinterpret_cast<uint64_t>(primary));
  CHECK(as_cuda(owner(caller)) == primary);
  CUevent event = nullptr;
  REQUIRE(custom::cuEventCreate(&event, 0) == CUDA_SUCCESS);
  CHECK(custom::cuEventRecord(event, nullptr, false) == CUDA_SUCCESS);
  CHECK(fake.session->newest().context == uint32_t(reinterpret_cast<uint64_t>(context)));
  REQUIRE(custom::cuCtxSetCurrent(primary) == CUDA_SUCCESS);
  CHECK(custom::cuEventRecord(event, nullptr, false) == CUDA_SUCCESS);
  CHECK(custom::cuGreenCtxRecordEvent(green, event) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(
    Fixture,
    "synchronising the primary context covers work of its green ones, and no NULL stream's progress covers theirs") {
  CUevent event = nullptr;
  REQUIRE(custom::cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(custom::cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(context_idle(*find_context(primary)));
  CUstream stream = stream_of(green);
  Caller caller = enter_context(*find_context(context));
  note_stream_work(caller, reinterpret_cast<uint64_t>(stream), 1000);
  CHECK_FALSE(context_idle(*find_context(primary)));

  REQUIRE(custom::cuCtxSetCurrent(context) == CUDA_SUCCESS);
  REQUIRE(custom::cuEventRecord(event, nullptr, false) == CUDA_SUCCESS);
  note_stream_done(test::server_session(), find_context(primary)->legacy, ~uint64_t(0) >> 1);
  CHECK_FALSE(event_done(*find_event(event)));
  note_context_done(*find_context(primary), ~uint64_t(0) >> 1);
  CHECK(event_done(*find_event(event)));
}

TEST_CASE_FIXTURE(Fixture, "a fault in a green context is one of its primary context and of all its green ones") {
  CUgreenCtx other = nullptr;
  REQUIRE(custom::cuGreenCtxCreate(&other, descriptor(), 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
  leave(enter_context(*find_context(context)), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(enter(Needs::context).error == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(enter_context(*find_context(reinterpret_cast<CUcontext>(other))).error == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE_FIXTURE(Fixture, "a green context holds its primary context until it is destroyed") {
  CHECK(custom::cuDevicePrimaryCtxReset_v2(0) == CUDA_ERROR_NOT_PERMITTED);
  CHECK(custom::cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(custom::cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_NOT_PERMITTED);
  CHECK(sent(SessionOrdinal::release_primary) == 0);
  CUstream stream = stream_of(green);
  CHECK(custom::cuGreenCtxDestroy(green) == CUDA_SUCCESS);
  CHECK(sent(SessionOrdinal::green_destroy) == 1);
  CHECK(sent(SessionOrdinal::release_primary) == 1);
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(custom::cuGreenCtxDestroy(green) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(custom::cuCtxSetCurrent(context) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(custom::cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE_FIXTURE(Fixture,
                  "no stream of a green context waits for its NULL stream, and its flags are its primary context's") {
  REQUIRE(custom::cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  unsigned flags = 0;
  REQUIRE(custom::cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  CHECK(custom::cuStreamGetFlags(stream, &flags, false) == CUDA_SUCCESS);
  CHECK(flags == CU_STREAM_NON_BLOCKING);
  CHECK(custom::cuCtxSetFlags(CU_CTX_SCHED_BLOCKING_SYNC) == CUDA_SUCCESS);
  REQUIRE(custom::cuCtxSetCurrent(primary) == CUDA_SUCCESS);
  CHECK(custom::cuCtxGetFlags(&flags) == CUDA_SUCCESS);
  CHECK(flags == (CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST));
}

TEST_CASE_FIXTURE(Fixture, "a primary context is waited for while its green one captures, which itself is not") {
  const CUstream stream = stream_of(green);
  REQUIRE(custom::cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED, false) == CUDA_SUCCESS);
  CUstreamCaptureStatus status;
  CHECK(custom::cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(custom::cuStreamIsCapturing(stream, &status, false) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  REQUIRE(custom::cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CHECK(custom::cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  CHECK(custom::cuStreamEndCapture(stream, &graph, false) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("a green context that the server refuses leaves the primary context as it was") {
  FakeProcess fake;
  fake.session->answer_with(uint32_t(SessionOrdinal::green_create), CUDA_ERROR_OUT_OF_MEMORY);
  CUgreenCtx green = nullptr;
  CHECK(custom::cuGreenCtxCreate(&green, Fixture::descriptor(), 0, CU_GREEN_CTX_DEFAULT_STREAM) ==
        CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(custom::cuGreenCtxCreate(&green, Fixture::descriptor(), 0, 0) == CUDA_ERROR_INVALID_VALUE);
  auto unknown = reinterpret_cast<CUdevResourceDesc>(wire::make_handle(wire::HandleKind::device_resource_desc, 77, 1));
  CHECK(custom::cuGreenCtxCreate(&green, unknown, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_INVALID_CONTEXT);
}
