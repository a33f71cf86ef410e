#include <doctest/doctest.h>

#include "schema/api_context.capnp.h"
#include "schema/api_event.capnp.h"
#include "schema/api_pool.capnp.h"
#include "schema/api_stream.capnp.h"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::HandleKind;
using wire::SessionOrdinal;

namespace {

// The ordinal of a driver function, from the generated table.
uint32_t ordinal(std::string_view name) {
  auto table = server::generated_replay_table();
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].name && table[i].name == name) return uint32_t(i) + wire::kFirstDriverOrdinal;
  }
  return 0;
}

struct Fixture {
  FakeDriver driver;
  FakeSession session;
  uint64_t stream = 0, event = 0;
  CUevent native = nullptr;
  std::byte memory[64] = {};

  explicit Fixture(server::SessionSettings settings = {}) : session(driver, std::move(settings)) {
    session.enter_primary();
    stream = session.give(HandleKind::stream, reinterpret_cast<void*>(0x53));
    driver.table.cuEventCreate(&native, 0);
    event = session.give(HandleKind::event, native);
    driver.log.clear();
  }
  uint64_t synchronise_stream(uint64_t handle) {
    return session.frame<schema::CuStreamSynchronizeParams>(wire::FrameKind::called, ordinal("cuStreamSynchronize"),
                                                            [&](auto params) { params.setHStream(handle); });
  }
  uint64_t synchronise_event(uint64_t handle) {
    return session.frame<schema::CuEventSynchronizeParams>(wire::FrameKind::called, ordinal("cuEventSynchronize"),
                                                           [&](auto params) { params.setHEvent(handle); });
  }
  uint64_t query_event(uint64_t handle) {
    return session.frame<schema::CuEventQueryParams>(wire::FrameKind::called, ordinal("cuEventQuery"),
                                                     [&](auto params) { params.setHEvent(handle); });
  }
  uint64_t synchronise_context() {
    return session.frame<schema::CuCtxSynchronizeParams>(wire::FrameKind::called, ordinal("cuCtxSynchronize"),
                                                         [](auto) {});
  }
  void record_held_work_and_poll_as_long_as_it_takes() {
    session.poll_limit = std::chrono::hours(1);
    session.state().query_spin().set_limit(std::chrono::hours(1));
    driver.hold = true;
    driver.table.cuEventRecord(native, nullptr);
  }
  CUresult allocate_from_a_pool() {
    driver.table.cuMemAllocAsync = [](CUdeviceptr* address, size_t, CUstream) {
      *address = 0x1000;
      return CUDA_SUCCESS;
    };
    return CUresult(session.result(session.frame<schema::CuMemAllocAsyncParams>(
        wire::FrameKind::called, ordinal("cuMemAllocAsync"), [&](auto params) { params.setHStream(stream); })));
  }
  // Waits for the idle stream, event and context, each of which the first poll finds complete.
  void wait_for_all() {
    driver.log.clear();
    CHECK(session.result(synchronise_stream(stream)) == CUDA_SUCCESS);
    CHECK(session.result(synchronise_event(event)) == CUDA_SUCCESS);
    CHECK(session.result(synchronise_context()) == CUDA_SUCCESS);
  }
  void destroy_event() {
    session.frame<schema::CuEventDestroyV2Params>(wire::FrameKind::posted, ordinal("cuEventDestroy_v2"),
                                                  [&](auto params) { params.setHEvent(event); });
  }
  uint64_t download_later() {
    return session.post<schema::CopyFromDevice>(SessionOrdinal::copy_from_device,
                                                [&](schema::CopyFromDevice::Builder params) {
                                                  params.setSource(reinterpret_cast<uint64_t>(memory));
                                                  params.setBytes(sizeof memory);
                                                  params.setStream(stream);
                                                });
  }
  void watch_event(uint64_t handle, uint64_t record) {
    session.post<schema::WatchEvent>(SessionOrdinal::watch_event, [&](schema::WatchEvent::Builder params) {
      params.setEvent(handle);
      params.setRecord(record);
    });
  }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "synchronising with an idle stream is answered at once, after what the device printed") {
  session.sync_duties().note();
  uint64_t sequence = synchronise_stream(stream);
  CHECK(session.result(sequence) == CUDA_SUCCESS);
  CHECK(session.drained == 1);
  CHECK(session.waiting() == 0);
}

TEST_CASE_FIXTURE(Fixture, "synchronising with a busy stream is left to a waiter and answered when it is done") {
  driver.hold = true;
  uint64_t sequence = synchronise_stream(stream);
  CHECK(session.waiting() == 1);
  CHECK(session.result(sequence) == -1);
  driver.release();
  session.run_waiters();
  CHECK(session.result(sequence) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "synchronising with a context waits for all of it") {
  driver.hold = true;
  uint64_t sequence = synchronise_context();
  CHECK(session.result(sequence) == -1);
  session.run_waiters();
  CHECK(session.result(sequence) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "a wait that a query finds over needs no synchronising call where none is due") {
  wait_for_all();
  CHECK(driver.count("cuCtxSynchronize") == 0);
  CHECK(driver.count("cuEventSynchronize") == 0);
  CHECK(session.drained == 0);
}

TEST_CASE_FIXTURE(Fixture, "where one is due every wait ends with it, and with what the device printed") {
  session.sync_duties().note();
  wait_for_all();
  CHECK(driver.count("cuCtxSynchronize") == 1);
  CHECK(driver.count("cuEventSynchronize") == 2);
  CHECK(session.drained == 3);
}

TEST_CASE_FIXTURE(Fixture,
                  "a context is waited for by the driver once a stream was destroyed, for its work may go on") {
  driver.table.cuStreamDestroy_v2 = [](CUstream) { return CUDA_SUCCESS; };
  session.frame<schema::CuStreamDestroyV2Params>(wire::FrameKind::posted, ordinal("cuStreamDestroy_v2"),
                                                 [&](auto params) { params.setHStream(stream); });
  REQUIRE(session.failed.empty());
  driver.log.clear();
  CHECK(session.result(synchronise_context()) == CUDA_SUCCESS);
  CHECK(driver.count("cuCtxSynchronize") == 1);
}

TEST_CASE("a wait whose word the GPU has written does not ask the driver") {
  Fixture fixture({.write_word = &FakeDriver::write_word});
  fixture.driver.failures["cuEventQuery"] = CUDA_ERROR_NOT_READY;
  CHECK(fixture.session.result(fixture.synchronise_stream(fixture.stream)) == CUDA_SUCCESS);
  CHECK(fixture.session.waiting() == 0);
  fixture.driver.failures.clear();
  CHECK(fixture.session.result(fixture.synchronise_context()) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "a wait after an allocation from a pool lets the driver give memory of the pool back") {
  REQUIRE(allocate_from_a_pool() == CUDA_SUCCESS);
  wait_for_all();
  CHECK(driver.count("cuCtxSynchronize") == 1);
  CHECK(driver.count("cuEventSynchronize") == 2);
}

TEST_CASE_FIXTURE(Fixture, "synchronising with another context than the current one waits for that one") {
  uint64_t other = wire::make_handle(HandleKind::context, 2, 1);
  session.call<schema::RetainPrimary>(SessionOrdinal::retain_primary, [&](schema::RetainPrimary::Builder params) {
    params.setContext(other);
    params.setDevice(1);
  });
  auto synchronise = [&](uint64_t handle) {
    return session.frame<schema::CuCtxSynchronizeV2Params>(wire::FrameKind::called, ordinal("cuCtxSynchronize_v2"),
                                                           [&](auto params) { params.setCtx(handle); });
  };
  uint64_t sequence = synchronise(other);
  session.run_waiters();
  CHECK(session.result(sequence) == CUDA_SUCCESS);
  CHECK(driver.current == reinterpret_cast<CUcontext>(uintptr_t{0x101}));
  CHECK(session.result(synchronise(0)) == CUDA_SUCCESS);
  CHECK(driver.current == reinterpret_cast<CUcontext>(uintptr_t{0x100}));
  CHECK(session.result(synchronise(wire::make_handle(HandleKind::context, 3, 1))) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE_FIXTURE(Fixture, "streams and events never given out cannot be synchronised with") {
  CHECK(session.result(synchronise_stream(event)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(session.result(synchronise_stream(77)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(session.result(synchronise_event(stream)) == CUDA_ERROR_INVALID_HANDLE);
  session.frame_context = 0;
  CHECK(session.result(synchronise_stream(stream)) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(session.result(synchronise_event(event)) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(session.result(synchronise_context()) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE_FIXTURE(Fixture, "the error that a stream ended with is the answer to its synchronisation") {
  driver.failures["cuEventQuery"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  CHECK(session.result(synchronise_stream(stream)) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(session.result(synchronise_event(event)) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(session.result(synchronise_context()) == CUDA_ERROR_ILLEGAL_ADDRESS);
  driver.failures.clear();
}

TEST_CASE_FIXTURE(Fixture, "a query of work that is nearly done is answered when it is") {
  record_held_work_and_poll_as_long_as_it_takes();
  int looks = 0;
  session.enough_polls = [&] {
    if (++looks == 3) driver.release();
    return false;
  };
  CHECK(session.result(query_event(event)) == CUDA_SUCCESS);
  CHECK(looks == 3);
}

TEST_CASE_FIXTURE(Fixture,
                  "a query is waited for no longer than until the client sends more, twice in vain, and not again") {
  record_held_work_and_poll_as_long_as_it_takes();
  int looks = 0;
  session.enough_polls = [&] {
    ++looks;
    return true;
  };
  for (int i = 0; i < 5; ++i) CHECK(session.result(query_event(event)) == CUDA_ERROR_NOT_READY);
  CHECK(looks == server::QuerySpin::kVainMax);

  // If work ends soon after such an answer, polling pays off the next time.
  watch_event(event, 1);
  driver.release();
  session.watcher().poll();
  driver.table.cuEventRecord(native, nullptr);
  CHECK(session.result(query_event(event)) == CUDA_ERROR_NOT_READY);
  CHECK(looks == server::QuerySpin::kVainMax + 1);
}

TEST_CASE_FIXTURE(Fixture, "a watch of an event that is nearly done is answered when it is, without the watcher") {
  record_held_work_and_poll_as_long_as_it_takes();
  int looks = 0;
  session.enough_polls = [&] {
    if (++looks == 3) driver.release();
    return false;
  };
  watch_event(event, 4);
  CHECK(looks == 3);
  REQUIRE(session.notices(wire::NoticeOrdinal::completion).size() == 1);
  CHECK(session.notices(wire::NoticeOrdinal::completion)[0]->as<schema::Completion>().getRecord() == 4);
}

TEST_CASE_FIXTURE(Fixture, "a query is not waited for where the replay does not poll") {
  driver.hold = true;
  driver.table.cuEventRecord(native, nullptr);
  session.enough_polls = [] { return false; };
  CHECK(session.result(query_event(event)) == CUDA_ERROR_NOT_READY);
}

TEST_CASE_FIXTURE(Fixture,
                  "a wait that finds a lost context by a query writes out what kernels printed, and then tells") {
  session.poll_limit = std::chrono::hours(1);
  driver.failures["cuEventQuery"] = CUDA_ERROR_LAUNCH_FAILED;
  const auto writes_out = [&](auto wait) {
    driver.log.clear();
    const unsigned drained = session.drained;
    const bool written = session.result(wait()) == CUDA_ERROR_LAUNCH_FAILED && driver.count("cuStreamSynchronize") == 1;
    return written && session.drained > drained;
  };
  CHECK(writes_out([&] { return synchronise_stream(stream); }));
  CHECK(writes_out([&] { return synchronise_event(event); }));
  CHECK(writes_out([&] { return synchronise_context(); }));
  CHECK(writes_out([&] { return query_event(event); }));
  driver.log.clear();
  watch_event(event, 1);
  CHECK(driver.count("cuStreamSynchronize") == 1);
  CHECK(session.notices(wire::NoticeOrdinal::completion).size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "a failure that leaves the context whole is told without a synchronisation") {
  driver.failures["cuEventQuery"] = CUDA_ERROR_INVALID_HANDLE;
  CHECK(session.result(query_event(event)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(driver.count("cuStreamSynchronize") == 0);
}

TEST_CASE_FIXTURE(Fixture, "a deferred error is told by the next reply, once") {
  session.deferred = CUDA_ERROR_LAUNCH_FAILED;
  uint64_t first = synchronise_stream(stream), second = synchronise_stream(stream);
  CHECK(session.reply(first)->as<schema::Result>().getDeferred() == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(session.reply(second)->as<schema::Result>().getDeferred() == 0);
}

TEST_CASE_FIXTURE(Fixture, "the data of copies that a synchronisation covers leave before its reply") {
  for (bool held : {false, true}) {
    driver.hold = held;
    session.outbox_.sent.clear();
    download_later();
    uint64_t sequence = synchronise_stream(stream);
    driver.release();
    session.run_waiters();
    REQUIRE(session.sent().size() == 2);
    CHECK(session.sent()[0].notice);
    CHECK(session.sent()[0].bulk.size() == sizeof memory);
    CHECK(session.sent()[1].sequence == sequence);
    session.watcher().poll();
    CHECK(session.sent().size() == 2);
  }
}

TEST_CASE_FIXTURE(Fixture,
                  "a completed event is told at once, a pending one when it is done, and after the data before it") {
  watch_event(event, 5);
  REQUIRE(session.notices(wire::NoticeOrdinal::completion).size() == 1);
  session.outbox_.sent.clear();

  driver.hold = true;
  download_later();
  driver.table.cuEventRecord(native, nullptr);
  watch_event(event, 6);
  session.watcher().poll();
  CHECK(session.sent().empty());
  driver.release();
  session.watcher().poll();
  REQUIRE(session.sent().size() == 2);
  CHECK(session.sent()[0].ordinal == wire::NoticeOrdinal::copy_data);
  auto completion = session.sent()[1].as<schema::Completion>();
  CHECK(completion.getEvent() == event);
  CHECK(completion.getRecord() == 6);
  CHECK(completion.getStream() == 0);
  CHECK(completion.getResult() == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "an event that is destroyed while it is watched lives until its watch has ended") {
  driver.hold = true;
  driver.table.cuEventRecord(native, nullptr);
  watch_event(event, 6);
  destroy_event();
  CHECK(driver.events.count(native) == 1);
  CHECK(session.result(synchronise_event(event)) == CUDA_ERROR_INVALID_HANDLE);
  driver.release();
  session.watcher().poll();
  CHECK(driver.events.count(native) == 0);
  CHECK(session.notices(wire::NoticeOrdinal::completion).size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "an event that nobody looks at is destroyed at once") {
  destroy_event();
  CHECK(driver.events.count(native) == 0);
  destroy_event();
  REQUIRE(session.failed.size() == 1);
  CHECK(session.failed[0].result == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE_FIXTURE(Fixture, "a watched stream is told with the sequence of the frame that asked") {
  driver.hold = true;
  uint64_t sequence =
      session.post<schema::WatchStream>(SessionOrdinal::watch_stream, [&](auto params) { params.setStream(stream); });
  CHECK(session.sent().empty());
  driver.release();
  session.watcher().poll();
  REQUIRE(session.sent().size() == 1);
  auto completion = session.sent()[0].as<schema::Completion>();
  CHECK(completion.getStream() == stream);
  CHECK(completion.getSequence() == sequence);
  CHECK(completion.getEvent() == 0);
}

TEST_CASE_FIXTURE(Fixture, "every watch is answered, also one of a handle never given out or one too many") {
  watch_event(stream, 1);
  session.post<schema::WatchStream>(SessionOrdinal::watch_stream, [&](auto params) { params.setStream(event); });
  driver.hold = true;
  session.watcher().full = true;
  driver.table.cuEventRecord(native, nullptr);
  watch_event(event, 2);
  session.post<schema::WatchStream>(SessionOrdinal::watch_stream, [&](auto params) { params.setStream(stream); });
  auto notices = session.notices(wire::NoticeOrdinal::completion);
  REQUIRE(notices.size() == 4);
  for (int i : {0, 1}) CHECK(notices[i]->as<schema::Completion>().getResult() == CUDA_ERROR_INVALID_HANDLE);
  for (int i : {2, 3}) CHECK(notices[i]->as<schema::Completion>().getResult() == CUDA_ERROR_OUT_OF_MEMORY);
  driver.release();
}
