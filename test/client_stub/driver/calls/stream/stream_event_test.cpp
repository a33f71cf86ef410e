#include <thread>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/composition/notices.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "schema/api_stream.capnp.h"
#include "schema/session.capnp.h"
#include "test/client_stub/driver/fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::client;
using test::FakeProcess;

namespace {

constexpr auto kWatchStream = uint32_t(wire::SessionOrdinal::watch_stream);
constexpr auto kWatchEvent = uint32_t(wire::SessionOrdinal::watch_event);
// protocol/api/stream.toml, event.toml
constexpr uint32_t kStreamQuery = 2503, kStreamGetAttribute = 2507, kEventQuery = 2704;

struct CurrentProcess : FakeProcess {
  CurrentProcess() {
    CUcontext context = nullptr;
    REQUIRE(custom::cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(custom::cuCtxSetCurrent(context) == CUDA_SUCCESS);
    session->answer_with(kStreamQuery, CUDA_ERROR_NOT_READY);
    session->answer_with(kEventQuery, CUDA_ERROR_NOT_READY);
  }
  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream made = nullptr;
    REQUIRE(custom::cuStreamCreate(&made, flags) == CUDA_SUCCESS);
    return made;
  }
  CUevent event(unsigned flags = 0) {
    CUevent made = nullptr;
    REQUIRE(custom::cuEventCreate(&made, flags) == CUDA_SUCCESS);
    return made;
  }
  // Notes work of the stream, as if it had been sent.
  void work(CUstream to) {
    note_stream_work(enter(Needs::context), reinterpret_cast<uint64_t>(to), session->last_sequence());
  }

  template <class Fill>
  void notify(wire::NoticeOrdinal ordinal, Fill&& fill) {
    capnp::MallocMessageBuilder message;
    fill(message);
    capnp::SegmentArrayMessageReader reader(message.getSegmentsForOutput());
    notices.notice(ordinal, reader);
  }
  void completed_event(CUevent event, uint64_t record, CUresult result = CUDA_SUCCESS) {
    notify(wire::NoticeOrdinal::completion, [&](capnp::MessageBuilder& message) {
      auto done = message.initRoot<schema::Completion>();
      done.setEvent(reinterpret_cast<uint64_t>(event));
      done.setRecord(record);
      done.setResult(result);
    });
  }
  void completed_stream(CUstream stream, uint64_t sequence, CUresult result = CUDA_SUCCESS) {
    notify(wire::NoticeOrdinal::completion, [&](capnp::MessageBuilder& message) {
      auto done = message.initRoot<schema::Completion>();
      done.setStream(reinterpret_cast<uint64_t>(stream));
      done.setSequence(sequence);
      done.setResult(result);
    });
  }

  Notices& notices = test::part<client::Notices>();
};

}  // namespace

TEST_CASE(
    "what stands behind a function of the program that has not returned is not ready, and the server is not asked") {
  CurrentProcess process;
  CUstream stream = process.stream(), other = process.stream();
  CUevent before = process.event(), behind = process.event(), elsewhere = process.event();
  REQUIRE(custom::cuEventRecord(before, stream, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuLaunchHostFunc(
              stream, [](void*) {}, nullptr, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuEventRecord(behind, stream, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuEventRecord(elsewhere, other, false) == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    CHECK(custom::cuStreamQuery(stream, false) == CUDA_ERROR_NOT_READY);
    CHECK(custom::cuEventQuery(behind) == CUDA_ERROR_NOT_READY);
  }
  CHECK(process.session->count(kStreamQuery) == 0);
  CHECK(process.session->count(kEventQuery) == 0);
  // The result of the work is reported all the same.
  CHECK(process.session->count(kWatchStream) == 1);
  CHECK(process.session->count(kWatchEvent) == 1);
  CHECK(custom::cuEventQuery(before) == CUDA_ERROR_NOT_READY);
  CHECK(custom::cuEventQuery(elsewhere) == CUDA_ERROR_NOT_READY);
  CHECK(process.session->count(kEventQuery) == 2);
  process.notify(wire::NoticeOrdinal::host_callback,
                 [](capnp::MessageBuilder& message) { message.initRoot<schema::HostCallback>().setCallback(1); });
  test::part<HostCallbacks>().await_none();
  CHECK(custom::cuEventQuery(behind) == CUDA_ERROR_NOT_READY);
  CHECK(process.session->count(kEventQuery) == 3);
}

TEST_CASE("a stream is watched once for the work it has, and then answered from what is known") {
  CurrentProcess process;
  CUstream stream = process.stream();
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kWatchStream) == 0);
  process.work(stream);
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_ERROR_NOT_READY);
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_ERROR_NOT_READY);
  CHECK(process.session->count(kWatchStream) == 1);
  CHECK(process.session->count(kStreamQuery) == 1);
  process.completed_stream(stream, process.session->newest().sequence);
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_SUCCESS);
  size_t sent = process.session->total();
  CHECK(custom::cuStreamSynchronize(stream, false) == CUDA_SUCCESS);
  CHECK(process.session->total() == sent);
}

TEST_CASE("work that was sent after a watch is not covered by its answer") {
  CurrentProcess process;
  CUstream stream = process.stream();
  process.work(stream);
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_ERROR_NOT_READY);
  uint64_t watch = process.session->newest().sequence;
  process.event();  // a frame, so that the next work has a higher sequence
  process.work(stream);
  process.completed_stream(stream, watch);
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_ERROR_NOT_READY);
  CHECK(process.session->count(kWatchStream) == 2);
}

TEST_CASE("the null stream knows of the streams that synchronise with it, and of no others") {
  CurrentProcess process;
  CUstream free_one = process.stream(CU_STREAM_NON_BLOCKING);
  CUstream bound_one = process.stream(CU_STREAM_DEFAULT);
  process.work(free_one);
  CHECK(custom::cuStreamQuery(nullptr, false) == CUDA_SUCCESS);
  process.work(bound_one);
  CHECK(custom::cuStreamQuery(nullptr, false) == CUDA_ERROR_NOT_READY);
  process.completed_stream(nullptr, process.session->newest().sequence);
  CHECK(custom::cuStreamQuery(nullptr, false) == CUDA_SUCCESS);
}

TEST_CASE("what a watch found to have failed is the answer of the next question") {
  CurrentProcess process;
  CUstream stream = process.stream();
  process.work(stream);
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_ERROR_NOT_READY);
  process.completed_stream(stream, process.session->newest().sequence, CUDA_ERROR_LAUNCH_FAILED);
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(enter(Needs::context).error == CUDA_ERROR_LAUNCH_FAILED);
}

TEST_CASE("a per-thread stream belongs to its thread and is created when first used") {
  CurrentProcess process;
  CUcontext context = nullptr;
  REQUIRE(custom::cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  CUresult error;
  uint64_t mine = resolve_stream(enter(Needs::context), CU_STREAM_PER_THREAD, false, error);
  CHECK(error == CUDA_SUCCESS);
  CHECK(mine > wire::kStreamLegacy);
  CHECK(resolve_stream(enter(Needs::context), nullptr, true, error) == mine);
  CHECK(process.session->count(forward_ordinal::cuStreamCreate) == 0);
  CHECK(before_work(enter(Needs::context)) == CUDA_SUCCESS);
  CHECK(process.session->count(forward_ordinal::cuStreamCreate) == 1);
  CHECK(resolve_stream(enter(Needs::context), nullptr, false, error) == wire::kStreamNull);
  CHECK(resolve_stream(enter(Needs::context), CU_STREAM_LEGACY, true, error) == wire::kStreamLegacy);
  uint64_t other = 0;
  std::thread([&] {
    REQUIRE(custom::cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CUresult its_error;
    other = resolve_stream(enter(Needs::context), CU_STREAM_PER_THREAD, false, its_error);
    CHECK(its_error == CUDA_SUCCESS);
  }).join();
  CHECK(other != mine);
  // The server does not know that stream.
  CHECK(process.session->count(forward_ordinal::cuStreamCreate) == 1);
  CHECK(process.session->count(forward_ordinal::cuStreamDestroy_v2) == 0);
  // It ended with its thread.
  CHECK_FALSE(known_handle(wire::HandleKind::stream, other));
  CHECK(known_handle(wire::HandleKind::stream, mine));
  resolve_stream(enter(Needs::context), reinterpret_cast<CUstream>(0x1000), false, error);
  CHECK(error == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("a priority that is set or copied later is the stream's") {
  CurrentProcess process;
  CUstream stream = nullptr, other = nullptr;
  REQUIRE(custom::cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  REQUIRE(custom::cuStreamCreate(&other, 0) == CUDA_SUCCESS);
  CUstreamAttrValue value{};
  value.priority = -3;
  CHECK(custom::cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value, false) == CUDA_SUCCESS);
  int priority = 0;
  CHECK(custom::cuStreamGetPriority(stream, &priority, false) == CUDA_SUCCESS);
  CHECK(priority == -3);
  CHECK(custom::cuStreamCopyAttributes(other, stream, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamGetPriority(other, &priority, false) == CUDA_SUCCESS);
  CHECK(priority == -3);
  CHECK(custom::cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("of a value of a stream's attribute that may be wrong the server's driver is the judge, in the very call") {
  CurrentProcess process;
  CUstream stream = nullptr;
  REQUIRE(custom::cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  CUstreamAttrValue value{};
  auto set = [&](CUstreamAttrID attribute) { return custom::cuStreamSetAttribute(stream, attribute, &value, false); };
  auto priority = [&] {
    int priority = 0;
    CHECK(custom::cuStreamGetPriority(stream, &priority, false) == CUDA_SUCCESS);
    return priority;
  };
  value.priority = -3;
  size_t before = process.session->total();
  CHECK(set(CU_LAUNCH_ATTRIBUTE_PRIORITY) == CUDA_SUCCESS);
  CHECK(set(CU_LAUNCH_ATTRIBUTE_COOPERATIVE) == CUDA_ERROR_INVALID_VALUE);  // an attribute of launches, not of streams
  CHECK(process.session->total() == before + 1);
  CHECK(process.session->newest().kind == wire::FrameKind::posted);

  process.session->answer_with(uint32_t(wire::SessionOrdinal::ping), CUDA_ERROR_INVALID_VALUE);
  value.priority = -100;
  CHECK(set(CU_LAUNCH_ATTRIBUTE_PRIORITY) == CUDA_ERROR_INVALID_VALUE);
  CHECK(priority() == -3);
  value.syncPolicy = CUsynchronizationPolicy(99);
  CHECK(set(CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) == CUDA_ERROR_INVALID_VALUE);

  process.session->answer_with(uint32_t(wire::SessionOrdinal::ping), CUDA_SUCCESS);
  CHECK(set(CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) == CUDA_SUCCESS);
  process.session->answer(kStreamGetAttribute, [](capnp::MessageBuilder& reply) {
    CUstreamAttrValue taken{};
    taken.priority = -5;
    auto result = reply.initRoot<schema::CuStreamGetAttributeResults>();
    result.setValue(kj::ArrayPtr(reinterpret_cast<const kj::byte*>(&taken), sizeof taken));
  });
  value.priority = -100;
  CHECK(set(CU_LAUNCH_ATTRIBUTE_PRIORITY) == CUDA_SUCCESS);
  CHECK(priority() == -5);
}

TEST_CASE("streams tell their flags, priority, device, context and a number of their own") {
  CurrentProcess process;
  CUstream stream = nullptr;
  REQUIRE(custom::cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -100) == CUDA_SUCCESS);
  unsigned flags = 0;
  int priority = 0;
  unsigned long long id = 0, null_id = 0, legacy_id = 0;
  CUdevice device = -1;
  CUcontext context = nullptr;
  size_t sent = process.session->total();
  CHECK(custom::cuStreamGetFlags(stream, &flags, false) == CUDA_SUCCESS);
  CHECK(flags == CU_STREAM_NON_BLOCKING);
  CHECK(custom::cuStreamGetPriority(stream, &priority, false) == CUDA_SUCCESS);
  CHECK(priority == -5);
  CHECK(custom::cuStreamGetDevice(stream, &device, false) == CUDA_SUCCESS);
  CHECK(device == 0);
  CHECK(custom::cuStreamGetCtx(stream, &context, false) == CUDA_SUCCESS);
  CHECK(context == as_cuda(t_context));
  CHECK(custom::cuStreamGetId(stream, &id, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamGetId(nullptr, &null_id, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamGetId(CU_STREAM_LEGACY, &legacy_id, false) == CUDA_SUCCESS);
  CHECK(null_id == legacy_id);
  CHECK(id != null_id);
  CHECK(process.session->total() == sent);
  CHECK(custom::cuStreamCreate(&stream, 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuStreamCreate(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("an event is asked about once for each record") {
  CurrentProcess process;
  CUstream stream = process.stream();
  CUevent event = process.event();
  CHECK(custom::cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(custom::cuEventSynchronize(event) == CUDA_SUCCESS);
  REQUIRE(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  uint64_t first = process.session->newest().sequence;
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(process.session->count(kWatchEvent) == 1);
  CHECK(process.session->count(kEventQuery) == 1);
  process.session->newest().read<schema::WatchEvent>([&](schema::WatchEvent::Reader watch) {
    CHECK(watch.getRecord() == first);
    CHECK(watch.getEvent() == reinterpret_cast<uint64_t>(event));
  });
  // A newer record invalidates the answer about the older one.
  REQUIRE(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  uint64_t second = process.session->newest().sequence;
  process.completed_event(event, first);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  process.completed_event(event, second);
  CHECK(custom::cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(process.session->count(kWatchEvent) == 2);
}

TEST_CASE("an event that is polled is watched from its next record on, and no question about it travels") {
  CurrentProcess process;
  CUstream stream = process.stream();
  CUevent event = process.event();
  REQUIRE(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kWatchEvent) == 0);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  for (size_t round = 1; round <= 3; ++round) {
    CAPTURE(round);
    process.completed_event(event, process.session->last_sequence());
    CHECK(custom::cuEventQuery(event) == CUDA_SUCCESS);
    REQUIRE(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
    CHECK(process.session->count(kWatchEvent) == round + 1);
    const uint64_t record = process.session->newest().sequence - 1;
    process.session->newest().read<schema::WatchEvent>(
        [&](schema::WatchEvent::Reader watch) { CHECK(watch.getRecord() == record); });
    // The first query flushes unsent frames, once.
    const size_t flushes = process.session->flushes, total = process.session->total();
    CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    CHECK(process.session->flushes == flushes + 1);
    CHECK(process.session->total() == total);
  }
  CHECK(process.session->count(kEventQuery) == 1);
}

TEST_CASE("a program that asks for a watched event takes what has come for it by itself") {
  CurrentProcess process;
  CUstream stream = process.stream();
  CUevent event = process.event();
  REQUIRE(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  const uint64_t record = process.session->newest().sequence;
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  process.session->on_poll = [&] { process.completed_event(event, record); };
  CHECK(custom::cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(process.session->count(kEventQuery) == 1);
}

TEST_CASE("a record that is told to be done while it is asked for is not asked for at the server") {
  CurrentProcess process;
  CUstream stream = process.stream();
  CUevent event = process.event();
  REQUIRE(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  REQUIRE(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  const uint64_t record = process.session->newest().sequence - 1;
  // The completion arrives between the check of the record and the check of the progress.
  process.session->on_flush = [&] { process.completed_event(event, record); };
  CHECK(custom::cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(process.session->count(kEventQuery) == 1);
}

TEST_CASE("a record behind one that nobody asked about is not watched, nor one of a capture or of a shared event") {
  CurrentProcess process;
  CUstream stream = process.stream();
  CUevent event = process.event(), shared = process.event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  REQUIRE(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  REQUIRE(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kWatchEvent) == 2);
  REQUIRE(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kWatchEvent) == 2);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(custom::cuEventRecord(shared, stream, false) == CUDA_SUCCESS);
    CHECK(custom::cuEventQuery(shared) == CUDA_ERROR_NOT_READY);
  }
  CHECK(process.session->count(kWatchEvent) == 2);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(process.session->count(kWatchEvent) == 3);
  REQUIRE(custom::cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kWatchEvent) == 3);
}

TEST_CASE("an event that is watched from its record on is asked about when the program has learned of other progress") {
  CurrentProcess process;
  CUstream stream = process.stream(), other = process.stream();
  CUevent event = process.event();
  REQUIRE(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  REQUIRE(custom::cuEventRecord(event, stream, false) == CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(process.session->count(kEventQuery) == 1);
  REQUIRE(custom::cuStreamWaitEvent(other, event, 0, false) == CUDA_SUCCESS);
  process.work(other);
  REQUIRE(custom::cuStreamSynchronize(other, false) == CUDA_SUCCESS);
  process.session->answer_with(kEventQuery, CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(process.session->count(kEventQuery) == 2);
}

TEST_CASE("an event that another wait implies is asked about again") {
  CurrentProcess process;
  CUstream one = process.stream(), two = process.stream();
  CUevent first = process.event(), second = process.event();
  REQUIRE(custom::cuEventRecord(first, one, false) == CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(first) == CUDA_ERROR_NOT_READY);
  REQUIRE(custom::cuStreamWaitEvent(two, first, 0, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuEventRecord(second, two, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuEventSynchronize(second) == CUDA_SUCCESS);
  process.session->answer_with(kEventQuery, CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(first) == CUDA_SUCCESS);
  size_t sent = process.session->total();
  CHECK(custom::cuEventQuery(first) == CUDA_SUCCESS);
  CHECK(process.session->total() == sent);
}

TEST_CASE("a synchronised stream settles the events recorded in it") {
  CurrentProcess process;
  CUstream stream = process.stream();
  CUevent before = process.event(), after = process.event();
  REQUIRE(custom::cuEventRecord(before, stream, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuStreamSynchronize(stream, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuEventRecord(after, stream, false) == CUDA_SUCCESS);
  size_t sent = process.session->total();
  CHECK(custom::cuEventQuery(before) == CUDA_SUCCESS);
  CHECK(custom::cuEventSynchronize(before) == CUDA_SUCCESS);
  CHECK(process.session->total() == sent);
  CHECK(custom::cuEventQuery(after) == CUDA_ERROR_NOT_READY);
  REQUIRE(custom::cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(after) == CUDA_SUCCESS);
}

TEST_CASE("waiting for an event that is over sends nothing") {
  CurrentProcess process;
  CUstream one = process.stream(), two = process.stream();
  CUevent event = process.event();
  size_t sent = process.session->total();
  CHECK(custom::cuStreamWaitEvent(two, event, 0, false) == CUDA_SUCCESS);
  CHECK(process.session->total() == sent);
  REQUIRE(custom::cuEventRecord(event, one, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamWaitEvent(two, event, 0, false) == CUDA_SUCCESS);
  CHECK(process.session->total() == sent + 2);
  CHECK(custom::cuStreamWaitEvent(two, event, 4, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuStreamWaitEvent(two, reinterpret_cast<CUevent>(two), 0, false) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("elapsed time needs two recorded events that keep time") {
  CurrentProcess process;
  CUevent from = process.event(), to = process.event(), untimed = process.event(CU_EVENT_DISABLE_TIMING);
  float milliseconds = 0;
  CHECK(custom::cuEventElapsedTime_v2(&milliseconds, from, to) == CUDA_ERROR_INVALID_HANDLE);
  for (CUevent event : {from, to, untimed}) REQUIRE(custom::cuEventRecord(event, nullptr, false) == CUDA_SUCCESS);
  CHECK(custom::cuEventElapsedTime_v2(&milliseconds, from, untimed) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(custom::cuEventElapsedTime_v2(nullptr, from, to) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuEventElapsedTime_v2(&milliseconds, from, to) == CUDA_SUCCESS);
}

TEST_CASE("an event flag combination that the driver refuses is refused here") {
  CurrentProcess process;
  CUevent event = nullptr;
  CHECK(custom::cuEventCreate(&event, CU_EVENT_INTERPROCESS) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuEventCreate(&event, 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuEventCreate(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
}

TEST_CASE("a deferred error that the server tells reaches the context it belongs to") {
  CurrentProcess process;
  Caller caller = enter(Needs::context);
  process.notify(wire::NoticeOrdinal::deferred_error, [&](capnp::MessageBuilder& message) {
    auto error = message.initRoot<schema::DeferredError>();
    error.setResult(CUDA_ERROR_INVALID_VALUE);
    error.setContext(caller.context);
  });
  CHECK(custom::cuCtxSynchronize() == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuCtxSynchronize() == CUDA_SUCCESS);
  process.notify(wire::NoticeOrdinal::deferred_error, [&](capnp::MessageBuilder& message) {
    auto error = message.initRoot<schema::DeferredError>();
    error.setResult(CUDA_ERROR_ILLEGAL_ADDRESS);
    error.setContext(caller.context);
    error.setSticky(true);
  });
  CHECK(custom::cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(custom::cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("an error that the server tells with a code that is none of CUDA's is an unknown error to the program") {
  CurrentProcess process;
  Caller caller = enter(Needs::context);
  for (int32_t code : {917, -5, 1 << 20}) {
    process.notify(wire::NoticeOrdinal::deferred_error, [&](capnp::MessageBuilder& message) {
      auto error = message.initRoot<schema::DeferredError>();
      error.setResult(code);
      error.setContext(caller.context);
    });
    CHECK(custom::cuCtxSynchronize() == CUDA_ERROR_UNKNOWN);
    CUevent event = process.event();
    REQUIRE(custom::cuEventRecord(event, process.stream(), false) == CUDA_SUCCESS);
    process.completed_event(event, process.session->last_sequence(), CUresult(code));
    CHECK(custom::cuEventQuery(event) == CUDA_ERROR_UNKNOWN);
  }
}

TEST_CASE(
    "what is asked of an event that other processes share is at the server when the call returns, and nothing about it "
    "is assumed") {
  CurrentProcess process;
  constexpr uint32_t kEventRecord = 2702, kStreamWaitEvent = 2505;
  constexpr auto kPing = uint32_t(wire::SessionOrdinal::ping);
  CUstream stream = process.stream();
  CUevent shared = process.event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING), own = process.event();
  REQUIRE(custom::cuEventRecord(own, stream, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kPing) == 0);

  // This process has not recorded the event, but another one may have.
  CHECK(custom::cuStreamWaitEvent(stream, shared, 0, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kStreamWaitEvent) == 1);
  CHECK(process.session->count(kPing) == 1);
  CHECK(custom::cuEventQuery(shared) == CUDA_ERROR_NOT_READY);
  CHECK(custom::cuEventQuery(shared) == CUDA_ERROR_NOT_READY);
  CHECK(process.session->count(kEventQuery) == 2);
  CHECK(process.session->count(kWatchEvent) == 0);

  CHECK(custom::cuEventRecord(shared, stream, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kEventRecord) == 2);
  CHECK(process.session->count(kPing) == 2);
}
