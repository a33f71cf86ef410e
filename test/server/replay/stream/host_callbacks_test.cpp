#include <doctest/doctest.h>

#include <string_view>
#include <thread>

#include "schema/api_memory.capnp.h"
#include "server/replay/stream/host_callbacks.hpp"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::HandleKind;
using wire::SessionOrdinal;

namespace {

struct Fixture {
  FakeDriver driver;
  FakeSession session{driver};
  uint64_t stream = 0;
  std::byte memory[64] = {};

  Fixture() {
    session.enter_primary();
    stream = session.give(HandleKind::stream, reinterpret_cast<void*>(0x53));
    driver.log.clear();
  }
  uint64_t enqueue(uint64_t callback, uint8_t kind = 0) {
    return session.call<schema::HostFunction>(SessionOrdinal::host_function, [&](schema::HostFunction::Builder params) {
      params.setStream(stream);
      params.setCallback(callback);
      params.setKind(kind);
    });
  }
  void done(uint64_t callback) {
    session.post<schema::HostFunctionDone>(SessionOrdinal::host_function_done,
                                           [&](auto params) { params.setCallback(callback); });
  }
  void copy_from_device() {
    session.post<schema::CopyFromDevice>(SessionOrdinal::copy_from_device, [&](schema::CopyFromDevice::Builder params) {
      params.setSource(reinterpret_cast<uint64_t>(memory));
      params.setBytes(sizeof memory);
      params.setStream(stream);
    });
  }
  // Waits until this many callbacks have been sent to the client.
  void wait_for_notices(size_t count) {
    std::unique_lock lock(session.outbox_.mutex);
    session.outbox_.changed.wait(lock,
                                 [&] { return session.notices(wire::NoticeOrdinal::host_callback).size() >= count; });
  }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "a host function stops the stream until the client has run it") {
  CHECK(session.result(enqueue(7)) == CUDA_SUCCESS);
  REQUIRE(driver.host_functions.size() == 1);
  bool returned = false;
  std::thread stream_thread([&] {
    driver.host_functions[0]();
    returned = true;
  });
  wait_for_notices(1);
  auto notice = session.notices(wire::NoticeOrdinal::host_callback)[0]->as<schema::HostCallback>();
  CHECK(notice.getCallback() == 7);
  CHECK(notice.getStatus() == CUDA_SUCCESS);
  CHECK_FALSE(returned);
  CHECK(session.state().callbacks().unanswered() > 0);
  done(7);
  stream_thread.join();
  CHECK(session.state().callbacks().unanswered() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a stream callback is told how the stream stands") {
  enqueue(8, 1);
  CHECK(driver.log.back() == "cuStreamAddCallback");
  std::thread stream_thread([&] { driver.host_functions[0](); });
  wait_for_notices(1);
  CHECK(session.notices(wire::NoticeOrdinal::host_callback)[0]->as<schema::HostCallback>().getStatus() ==
        CUDA_ERROR_LAUNCH_FAILED);
  done(8);
  stream_thread.join();
}

TEST_CASE_FIXTURE(Fixture, "the end of the session lets callbacks go that still wait for the client") {
  enqueue(7);
  enqueue(9);
  std::thread stream_thread([&] { driver.host_functions[0](); });
  wait_for_notices(1);
  session.state().callbacks().end();
  stream_thread.join();
  driver.host_functions[1]();
  CHECK(session.notices(wire::NoticeOrdinal::host_callback).size() == 1);
  CHECK(session.result(enqueue(10)) == CUDA_ERROR_DEINITIALIZED);
}

TEST_CASE_FIXTURE(Fixture, "an answer to a callback that was not asked ends the session") {
  CHECK_THROWS_AS(done(7), server::ProtocolFault);
  enqueue(7);
  CHECK_THROWS_AS(done(7), server::ProtocolFault);
  session.state().callbacks().end();
  driver.host_functions[0]();
}

TEST_CASE_FIXTURE(Fixture, "a callback of unknown kind ends the session, one on an unknown stream is refused") {
  CHECK_THROWS_AS(enqueue(7, 2), server::ProtocolFault);
  stream = wire::make_handle(HandleKind::event, 1, 1);
  CHECK(session.result(enqueue(7)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(driver.log.empty());
}

TEST_CASE_FIXTURE(Fixture, "a callback that the driver refuses leaves nothing behind") {
  driver.failures["cuLaunchHostFunc"] = CUDA_ERROR_INVALID_VALUE;
  CHECK(session.result(enqueue(7)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(session.state().callbacks().unanswered() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a callback in a graph runs as often as the graph does") {
  driver.capturing = true;
  enqueue(7);
  for (int run = 1; run <= 3; ++run) {
    std::thread stream_thread([&] { driver.host_functions[0](); });
    wait_for_notices(size_t(run));
    done(7);
    stream_thread.join();
  }
}

TEST_CASE_FIXTURE(Fixture, "the data of copies before a callback leave before it") {
  driver.hold = true;
  copy_from_device();
  uint64_t asked = enqueue(7);
  CHECK(session.result(asked) == CUDA_SUCCESS);
  driver.release();
  session.outbox_.sent.clear();
  const size_t watched = session.watcher().size();
  std::thread stream_thread([&] { driver.host_functions[0](); });
  session.watcher().wait_for_size(watched + 1);
  session.watcher().poll();
  wait_for_notices(1);
  REQUIRE(session.sent().size() == 2);
  CHECK(session.sent()[0].ordinal == wire::NoticeOrdinal::copy_data);
  CHECK(session.sent()[1].ordinal == wire::NoticeOrdinal::host_callback);
  done(7);
  stream_thread.join();
}

TEST_CASE_FIXTURE(Fixture, "the data of copies before a function of a graph leave before it") {
  driver.capturing = true;
  enqueue(7);
  driver.capturing = false;
  driver.hold = true;
  copy_from_device();
  driver.release();
  session.outbox_.sent.clear();
  const size_t watched = session.watcher().size();
  std::thread stream_thread([&] { driver.host_functions[0](); });
  session.watcher().wait_for_size(watched + 1);
  session.watcher().poll();
  wait_for_notices(1);
  REQUIRE(session.sent().size() == 2);
  CHECK(session.sent()[0].ordinal == wire::NoticeOrdinal::copy_data);
  CHECK(session.sent()[1].ordinal == wire::NoticeOrdinal::host_callback);
  done(7);
  stream_thread.join();
}

TEST_CASE_FIXTURE(Fixture,
                  "memory that is freed while a stream stands at a callback is freed when the client has answered it") {
  auto free = [&](uint64_t address) {
    auto table = server::generated_replay_table();
    uint32_t ordinal = 0;
    while (!table[ordinal].name || std::string_view(table[ordinal].name) != "cuMemFree_v2") ++ordinal;
    session.frame<schema::CuMemFreeV2Params>(wire::FrameKind::posted, ordinal + wire::kFirstDriverOrdinal,
                                             [&](auto params) { params.setDptr(address); });
  };
  free(1000);
  CHECK(driver.count("cuMemFree_v2 1000") == 1);
  enqueue(7);
  free(2000);
  free(3000);
  CHECK(driver.count("cuMemFree_v2") == 1);
  std::thread stream_thread([&] { driver.host_functions[0](); });
  wait_for_notices(1);
  CHECK(driver.count("cuMemFree_v2") == 1);
  done(7);
  stream_thread.join();
  CHECK(driver.count("cuMemFree_v2 2000") == 1);
  CHECK(driver.count("cuMemFree_v2 3000") == 1);
  free(4000);
  CHECK(driver.count("cuMemFree_v2 4000") == 1);
  driver.failures["cuMemFree_v2"] = CUDA_ERROR_INVALID_VALUE;
  free(5000);
  CHECK(session.failed.size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "memory is freed when the callbacks before the free are answered, whatever came after") {
  uint32_t ordinal = 0;
  auto table = server::generated_replay_table();
  while (!table[ordinal].name || std::string_view(table[ordinal].name) != "cuMemFree_v2") ++ordinal;
  auto free = [&](uint64_t address) {
    session.frame<schema::CuMemFreeV2Params>(wire::FrameKind::posted, ordinal + wire::kFirstDriverOrdinal,
                                             [&](auto params) { params.setDptr(address); });
  };
  enqueue(7);
  free(1000);
  enqueue(8);
  free(2000);
  std::thread first([&] { driver.host_functions[0](); });
  wait_for_notices(1);
  done(7);
  first.join();
  CHECK(driver.count("cuMemFree_v2 1000") == 1);
  CHECK(driver.count("cuMemFree_v2 2000") == 0);
  std::thread second([&] { driver.host_functions[1](); });
  wait_for_notices(2);
  done(8);
  second.join();
  CHECK(driver.count("cuMemFree_v2 2000") == 1);
}

TEST_CASE_FIXTURE(Fixture, "callbacks that the driver leaves out end with their context") {
  enqueue(7);
  CHECK(session.state().callbacks().unanswered() == 1);
  session.call<schema::RetainPrimary>(SessionOrdinal::reset_primary,
                                      [](auto params) { params.setContext(FakeSession::kPrimary); });
  CHECK(session.state().callbacks().unanswered() == 0);
  session.state().callbacks().end();
  driver.host_functions[0]();
}
