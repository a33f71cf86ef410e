// Events that the server may record by itself: queries that the client answers from its own state, and queries that it
// does not.
#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/composition/notices.hpp"
#include "schema/api_graph.capnp.h"
#include "schema/session.capnp.h"
#include "test/client_stub/driver/fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::client;
using test::FakeProcess;

namespace {

// protocol/api/graph.toml, event.toml, stream.toml
constexpr uint32_t kGraphEventRecordNodeGetEvent = 2820, kEventRecordWithFlags = 2703, kEventQuery = 2704,
                   kEventSynchronize = 2705, kEventElapsedTime = 2706, kStreamWaitEvent = 2505;

struct WithGraph : FakeProcess {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;

  WithGraph() {
    CUcontext context = nullptr;
    REQUIRE(custom::cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(custom::cuCtxSetCurrent(context) == CUDA_SUCCESS);
    session->answer_with(kEventQuery, CUDA_ERROR_NOT_READY);
    REQUIRE(forward::cuGraphCreate(caller(), &graph, 0) == CUDA_SUCCESS);
    REQUIRE(custom::cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  }
  static Caller caller() { return enter(Needs::context); }
  CUstream stream() {
    CUstream made = nullptr;
    REQUIRE(custom::cuStreamCreate(&made, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return made;
  }
  CUevent event() {
    CUevent made = nullptr;
    REQUIRE(custom::cuEventCreate(&made, 0) == CUDA_SUCCESS);
    return made;
  }
  CUgraphNode add_record(CUevent event) {
    CUgraphNode node = nullptr;
    REQUIRE(forward::cuGraphAddEventRecordNode(caller(), &node, graph, nullptr, 0, event) == CUDA_SUCCESS);
    return node;
  }
  void launch(CUstream stream) { REQUIRE(custom::cuGraphLaunch(exec, stream, false) == CUDA_SUCCESS); }
  // The server's answer to a watch.
  void completed(CUevent event, uint64_t record) {
    capnp::MallocMessageBuilder message;
    auto done = message.initRoot<schema::Completion>();
    done.setEvent(reinterpret_cast<uint64_t>(event));
    done.setRecord(record);
    capnp::SegmentArrayMessageReader reader(message.getSegmentsForOutput());
    test::part<client::Notices>().notice(wire::NoticeOrdinal::completion, reader);
  }
};

}  // namespace

TEST_CASE("of an event that a graph records nothing is answered from what is known, whatever was said of it before") {
  WithGraph process;
  CUstream stream = process.stream();
  CUevent event = process.event();
  CHECK(custom::cuEventQuery(event) == CUDA_SUCCESS);
  process.add_record(event);
  process.launch(stream);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(process.session->count(kEventQuery) == 1);
  CHECK(custom::cuStreamWaitEvent(process.stream(), event, 0, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kStreamWaitEvent) == 1);
  CHECK(custom::cuEventSynchronize(event) == CUDA_SUCCESS);
  CHECK(process.session->count(kEventSynchronize) == 1);
  float milliseconds = 0;
  CHECK(custom::cuEventElapsedTime_v2(&milliseconds, event, event) == CUDA_SUCCESS);
  CHECK(process.session->count(kEventElapsedTime) == 1);
}

TEST_CASE("what the server has said of such an event holds until the next launch of any graph") {
  WithGraph process;
  CUstream stream = process.stream();
  CUevent event = process.event();
  process.add_record(event);
  process.launch(stream);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  const uint64_t launched = test::server_session().foreign_records.load();
  process.completed(event, launched);
  size_t sent = process.session->total();
  CHECK(custom::cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(custom::cuEventSynchronize(event) == CUDA_SUCCESS);
  CHECK(custom::cuStreamWaitEvent(process.stream(), event, 0, false) == CUDA_SUCCESS);
  CHECK(process.session->total() == sent + 1);  // the stream's creation
  process.launch(stream);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(process.session->count(kEventQuery) == 2);
}

TEST_CASE("a record of the program's own is known again, until a graph is launched") {
  WithGraph process;
  CUstream stream = process.stream(), other = process.stream();
  CUevent event = process.event();
  process.add_record(event);
  process.launch(stream);
  CHECK(custom::cuEventRecord(event, other, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamSynchronize(other, false) == CUDA_SUCCESS);
  size_t sent = process.session->total();
  CHECK(custom::cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(process.session->total() == sent);
  process.launch(stream);
  CHECK(custom::cuStreamSynchronize(other, false) == CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
}

TEST_CASE("that a stream or a context is done says nothing of an event that a graph may have recorded elsewhere") {
  WithGraph process;
  CUstream stream = process.stream(), elsewhere = process.stream();
  CUevent event = process.event();
  process.add_record(event);
  CHECK(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  process.launch(elsewhere);
  CHECK(custom::cuStreamSynchronize(stream, false) == CUDA_SUCCESS);
  CHECK(custom::cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(process.session->count(kEventQuery) == 1);
}

TEST_CASE("what a watch of an older record says of the event tells nothing of the stream of that record") {
  WithGraph process;
  CUstream stream = process.stream(), elsewhere = process.stream();
  CUevent event = process.event();
  process.add_record(event);
  CHECK(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  const uint64_t record = find_event(event)->record.load();
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);  // watched from here on
  process.launch(elsewhere);
  process.completed(event, record);
  CHECK_FALSE(stream_idle(*find_stream(process.caller().state, reinterpret_cast<uint64_t>(stream))));
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
}

TEST_CASE("events that no graph was given are answered locally beside launches of graphs") {
  WithGraph process;
  CUstream stream = process.stream();
  CUevent event = process.event();
  CHECK(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamSynchronize(stream, false) == CUDA_SUCCESS);
  process.launch(stream);
  size_t sent = process.session->total();
  CHECK(custom::cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(process.session->total() == sent);
}

TEST_CASE("an external record in a capture leaves the event as it is, and outside of captures it is refused") {
  WithGraph process;
  CUstream stream = process.stream();
  CUevent event = process.event();
  CHECK(custom::cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL, false) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(custom::cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL, false) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(process.session->count(kEventRecordWithFlags) == 0);
  CHECK(custom::cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED, false) == CUDA_SUCCESS);
  CHECK(custom::cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kEventRecordWithFlags) == 1);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);  // the server's answer
  CUstream other = process.stream();
  CHECK(custom::cuStreamWaitEvent(other, event, 0, false) == CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CHECK(custom::cuStreamIsCapturing(other, &status, false) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(custom::cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL, false) == CUDA_SUCCESS);
  CUgraph captured = nullptr;
  CHECK(custom::cuStreamEndCapture(stream, &captured, false) == CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
}

TEST_CASE("an event that only the driver knew is asked about") {
  WithGraph process;
  process.session->serve(kGraphEventRecordNodeGetEvent, [](const test::SentFrame& frame, capnp::MessageBuilder& reply,
                                                           const client::BulkSink&) {
    frame.read<schema::CuGraphEventRecordNodeGetEventParams>([&](auto params) {
      reply.initRoot<schema::CuGraphEventRecordNodeGetEventResults>().setEventOut(params.getEventOut());
    });
  });
  CUevent event = process.event(), named = nullptr;
  CUgraphNode node = process.add_record(event);
  CHECK(forward::cuGraphEventRecordNodeGetEvent(process.caller(), node, &named) == CUDA_SUCCESS);
  CHECK(named != event);
  CHECK(custom::cuEventQuery(named) == CUDA_ERROR_NOT_READY);
  CHECK(process.session->count(kEventQuery) == 1);
}

TEST_CASE("a launch of a graph ends what a capture that is over has made of an event, as far as the server says so") {
  WithGraph process;
  CUstream stream = process.stream();
  CUevent event = process.event();
  process.add_record(event);
  CHECK(custom::cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED, false) == CUDA_SUCCESS);
  CHECK(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  CUgraph captured = nullptr;
  CHECK(custom::cuStreamEndCapture(stream, &captured, false) == CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_INVALID_VALUE);
  process.launch(stream);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  process.session->answer_with(kEventQuery, CUDA_ERROR_INVALID_VALUE);
  process.launch(stream);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a stream has work after a call that takes memory in its order") {
  WithGraph process;
  CUstream stream = process.stream();
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  CHECK(forward::cuMemAllocAsync(process.caller(), &memory, 4096, stream) == CUDA_SUCCESS);
  CHECK_FALSE(stream_idle(*find_stream(process.caller().state, reinterpret_cast<uint64_t>(stream))));
}
