#include <thread>

#include "client/custom.hpp"
#include "client_stub/driver/state/copy/copy_rules.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "schema/api_capture.capnp.h"
#include "test/client_stub/driver/fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::client;

namespace {

constexpr uint32_t kEndCapture = 2602;  // protocol/api/capture.toml

struct Capturing : test::FakeProcess {
  Capturing() {
    CUcontext context = nullptr;
    REQUIRE(custom::cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(custom::cuCtxSetCurrent(context) == CUDA_SUCCESS);
    REQUIRE(custom::cuStreamCreate(&origin, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
    REQUIRE(custom::cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(custom::cuEventCreate(&event, 0) == CUDA_SUCCESS);
    // The server accepts the offered handle.
    session->serve(kEndCapture, [](const test::SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
      frame.read<schema::CuStreamEndCaptureParams>(
          [&](auto params) { reply.initRoot<schema::CuStreamEndCaptureResults>().setPhGraph(params.getPhGraph()); });
    });
  }
  // A failed check must not leave a capture for the next test.
  ~Capturing() {
    CUgraph graph = nullptr;
    custom::cuStreamEndCapture(origin, &graph, false);
  }
  CUstream origin = nullptr, other = nullptr;
  CUevent event = nullptr;
};

CUstreamCaptureStatus status_of(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  REQUIRE(custom::cuStreamIsCapturing(stream, &status, false) == CUDA_SUCCESS);
  return status;
}

}  // namespace

TEST_CASE("whether a stream captures is known without the server") {
  Capturing process;
  size_t sent = process.session->total();
  CHECK(status_of(process.origin) == CU_STREAM_CAPTURE_STATUS_NONE);
  cuuint64_t id = 0;
  CUstreamCaptureStatus status;
  CUgraph graph = nullptr;
  CHECK(custom::cuStreamGetCaptureInfo_v2(process.origin, &status, &id, &graph, nullptr, nullptr, false) ==
        CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(process.session->total() == sent);
}

TEST_CASE("a capture begins and ends, and its graph is the program's") {
  Capturing process;
  REQUIRE(custom::cuStreamBeginCapture_v2(process.origin, CU_STREAM_CAPTURE_MODE_GLOBAL, false) == CUDA_SUCCESS);
  CHECK(status_of(process.origin) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(status_of(process.other) == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(custom::cuStreamBeginCapture_v2(process.origin, CU_STREAM_CAPTURE_MODE_GLOBAL, false) ==
        CUDA_ERROR_ILLEGAL_STATE);
  // The origin synchronises with the NULL stream, whose status is therefore an error.
  CUstreamCaptureStatus status;
  CHECK(custom::cuStreamIsCapturing(nullptr, &status, false) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CUgraph graph = nullptr;
  REQUIRE(custom::cuStreamEndCapture(process.origin, &graph, false) == CUDA_SUCCESS);
  CHECK(graph != nullptr);
  CHECK(known_handle(wire::HandleKind::graph, reinterpret_cast<uint64_t>(graph)));
  CHECK(status_of(process.origin) == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(status_of(nullptr) == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(custom::cuStreamEndCapture(process.origin, &graph, false) == CUDA_ERROR_ILLEGAL_STATE);
}

TEST_CASE("a stream that waits for an event of a capture joins it, until the capture ends") {
  Capturing process;
  REQUIRE(custom::cuStreamBeginCapture_v2(process.origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuEventRecord(process.event, process.origin, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuStreamWaitEvent(process.other, process.event, 0, false) == CUDA_SUCCESS);
  CHECK(status_of(process.other) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  cuuint64_t origin_id = 0, other_id = 0;
  CUstreamCaptureStatus status;
  CHECK(custom::cuStreamGetCaptureInfo(process.origin, &status, &origin_id, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamGetCaptureInfo(process.other, &status, &other_id, false) == CUDA_SUCCESS);
  CHECK(origin_id == other_id);
  CUgraph graph = nullptr;
  REQUIRE(custom::cuStreamEndCapture(process.origin, &graph, false) == CUDA_SUCCESS);
  CHECK(status_of(process.other) == CU_STREAM_CAPTURE_STATUS_NONE);
  // The event is unusable until it is recorded again, and adds no stream to a capture that is over.
  CHECK(custom::cuEventQuery(process.event) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(custom::cuStreamWaitEvent(process.other, process.event, 0, false) == CUDA_SUCCESS);
  CHECK(status_of(process.other) == CU_STREAM_CAPTURE_STATUS_NONE);
  REQUIRE(custom::cuEventRecord(process.event, process.other, false) == CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(process.event) == CUDA_SUCCESS);
}

TEST_CASE("what a capture cannot take makes it invalid") {
  Capturing process;
  CUgraph graph = nullptr;
  CUevent unrelated = nullptr;
  REQUIRE(custom::cuEventCreate(&unrelated, 0) == CUDA_SUCCESS);
  REQUIRE(custom::cuEventRecord(unrelated, process.other, false) == CUDA_SUCCESS);
  auto begin = [&] {
    REQUIRE(custom::cuStreamBeginCapture_v2(process.origin, CU_STREAM_CAPTURE_MODE_RELAXED, false) == CUDA_SUCCESS);
    REQUIRE(custom::cuEventRecord(process.event, process.origin, false) == CUDA_SUCCESS);
  };
  auto invalid = [&] {
    CHECK(status_of(process.origin) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    size_t sent = process.session->total();
    CHECK(custom::cuMemsetD8Async(1, 0, 1, process.origin, false) != CUDA_SUCCESS);
    CHECK(process.session->total() == sent);
    CHECK(custom::cuStreamEndCapture(process.origin, &graph, false) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(status_of(process.origin) == CU_STREAM_CAPTURE_STATUS_NONE);
  };
  begin();
  CHECK(custom::cuEventQuery(process.event) == CUDA_ERROR_CAPTURED_EVENT);
  invalid();
  begin();
  CHECK(custom::cuStreamSynchronize(process.origin, false) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  invalid();
  begin();
  CHECK(custom::cuStreamQuery(process.origin, false) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  invalid();
  begin();
  CHECK(custom::cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  invalid();
  begin();
  CHECK(custom::cuStreamWaitEvent(process.origin, unrelated, 0, false) == CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  invalid();
  begin();
  REQUIRE(custom::cuStreamWaitEvent(process.other, process.event, 0, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamEndCapture(process.other, &graph, false) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  invalid();
  begin();
  REQUIRE(custom::cuStreamBeginCapture_v2(process.other, CU_STREAM_CAPTURE_MODE_RELAXED, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamWaitEvent(process.other, process.event, 0, false) == CUDA_ERROR_STREAM_CAPTURE_MERGE);
  CHECK(custom::cuStreamEndCapture(process.other, &graph, false) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  invalid();
}

TEST_CASE("an event that an invalid capture refused is one without a record to another capture") {
  Capturing process;
  CUstream plain = nullptr;
  REQUIRE(custom::cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(custom::cuStreamBeginCapture_v2(process.origin, CU_STREAM_CAPTURE_MODE_RELAXED, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuStreamBeginCapture_v2(process.other, CU_STREAM_CAPTURE_MODE_RELAXED, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamSynchronize(process.origin, false) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(custom::cuEventRecord(process.event, process.origin, false) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(custom::cuStreamWaitEvent(plain, process.event, 0, false) == CUDA_SUCCESS);  // the event was never recorded
  CHECK(status_of(process.other) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(custom::cuStreamWaitEvent(process.other, process.event, 0, false) == CUDA_SUCCESS);
  CHECK(status_of(process.other) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUgraph graph = nullptr;
  CHECK(custom::cuStreamEndCapture(process.origin, &graph, false) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(custom::cuStreamEndCapture(process.other, &graph, false) == CUDA_SUCCESS);
}

TEST_CASE("a question about the NULL stream with nowhere to write is that, and no capture minds") {
  Capturing process;
  REQUIRE(custom::cuStreamBeginCapture_v2(process.origin, CU_STREAM_CAPTURE_MODE_GLOBAL, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamIsCapturing(nullptr, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuStreamGetCaptureInfo_v2(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, false) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(status_of(process.origin) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

TEST_CASE("a capture bound to its thread ends in an error in another one") {
  Capturing process;
  REQUIRE(custom::cuStreamBeginCapture_v2(process.origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false) == CUDA_SUCCESS);
  std::thread([&] {
    CUgraph graph = nullptr;
    CHECK(custom::cuStreamEndCapture(process.origin, &graph, false) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  }).join();
  CUgraph graph = nullptr;
  CHECK(custom::cuStreamEndCapture(process.origin, &graph, false) == CUDA_ERROR_ILLEGAL_STATE);
}

TEST_CASE("an unsafe call invalidates a global capture, unless the thread is relaxed") {
  Capturing process;
  CHECK(test::part<client::Captures>().permit_unsafe_call() == CUDA_SUCCESS);
  REQUIRE(custom::cuStreamBeginCapture_v2(process.origin, CU_STREAM_CAPTURE_MODE_GLOBAL, false) == CUDA_SUCCESS);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  REQUIRE(custom::cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
  CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
  CHECK(test::part<client::Captures>().permit_unsafe_call() == CUDA_SUCCESS);
  REQUIRE(custom::cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
  CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
  CHECK(status_of(process.origin) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  std::thread([] {
    CHECK(test::part<client::Captures>().permit_unsafe_call() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }).join();
  CHECK(status_of(process.origin) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CUgraph graph = nullptr;
  CHECK(custom::cuStreamEndCapture(process.origin, &graph, false) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(graph == nullptr);
  CHECK(test::part<client::Captures>().permit_unsafe_call() == CUDA_SUCCESS);
}

TEST_CASE("a capture ends although nobody takes its graph, valid or not") {
  Capturing process;
  CUgraph graph = nullptr;
  CHECK(custom::cuStreamEndCapture(process.origin, nullptr, false) == CUDA_ERROR_ILLEGAL_STATE);
  REQUIRE(custom::cuStreamBeginCapture_v2(process.origin, CU_STREAM_CAPTURE_MODE_GLOBAL, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamEndCapture(process.origin, nullptr, false) == CUDA_SUCCESS);
  CHECK(status_of(process.origin) == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(custom::cuStreamEndCapture(process.origin, &graph, false) == CUDA_ERROR_ILLEGAL_STATE);
  REQUIRE(custom::cuStreamBeginCapture_v2(process.origin, CU_STREAM_CAPTURE_MODE_GLOBAL, false) == CUDA_SUCCESS);
  CHECK(test::part<client::Captures>().permit_unsafe_call() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(custom::cuStreamEndCapture(process.origin, nullptr, false) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(custom::cuStreamEndCapture(process.origin, &graph, false) == CUDA_ERROR_ILLEGAL_STATE);
}

TEST_CASE("a graph of the program into which a capture went that became invalid is gone") {
  Capturing process;
  auto graph = reinterpret_cast<CUgraph>(create_handle(enter(Needs::context), wire::HandleKind::graph));
  REQUIRE(custom::cuStreamBeginCaptureToGraph(process.origin, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL,
                                              false) == CUDA_SUCCESS);
  CHECK(test::part<client::Captures>().permit_unsafe_call() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(custom::cuStreamEndCapture(process.origin, nullptr, false) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(!known_handle(wire::HandleKind::graph, reinterpret_cast<uint64_t>(graph)));
}

TEST_CASE("a blocking copy minds that its own stream is captured, and no other") {
  Capturing process;
  const auto origin = reinterpret_cast<uint64_t>(process.origin), other = reinterpret_cast<uint64_t>(process.other);
  const Caller caller = enter(Needs::context);
  REQUIRE(custom::cuStreamBeginCapture_v2(process.origin, CU_STREAM_CAPTURE_MODE_GLOBAL, false) == CUDA_SUCCESS);
  CHECK(refuse_in_capture(caller, other, true) == CUDA_SUCCESS);
  CHECK(refuse_in_capture(caller, origin, false) == CUDA_SUCCESS);
  CHECK(status_of(process.origin) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(refuse_in_capture(caller, origin, true) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(refuse_in_capture(caller, origin, false) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(refuse_in_capture(caller, other, true) == CUDA_SUCCESS);
}

TEST_CASE("a capture that its thread left behind is not that of a thread which comes later") {
  Capturing process;
  std::thread([&] {
    REQUIRE(custom::cuStreamBeginCapture_v2(process.origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false) ==
            CUDA_SUCCESS);
  }).join();
  for (int i = 0; i < 8; ++i) {  // one of these threads reuses the address of the first one's state
    std::thread([] { CHECK(test::part<client::Captures>().permit_unsafe_call() == CUDA_SUCCESS); }).join();
  }
}

TEST_CASE("another thread's capture that is bound to it is no hindrance") {
  Capturing process;
  REQUIRE(custom::cuStreamBeginCapture_v2(process.origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false) == CUDA_SUCCESS);
  std::thread([] { CHECK(test::part<client::Captures>().permit_unsafe_call() == CUDA_SUCCESS); }).join();
  CHECK(test::part<client::Captures>().permit_unsafe_call() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_CASE("the null stream cannot be captured") {
  Capturing process;
  CHECK(custom::cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED, false) ==
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(custom::cuStreamBeginCapture_v2(process.origin, CUstreamCaptureMode(3), false) == CUDA_ERROR_INVALID_VALUE);
}
