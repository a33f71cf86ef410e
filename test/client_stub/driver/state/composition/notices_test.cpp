#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "client/custom.hpp"
#include "client_stub/driver/state/session/device_output.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "client_stub/driver/state/composition/notices.hpp"
#include "client_stub/driver/state/copy/pending_copies.hpp"
#include "schema/session.capnp.h"
#include "test/client_stub/driver/fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::client;

namespace {

struct CopyNotice {
  CopyNotice(uint64_t sequence, uint64_t offset, bool last, CUresult result = CUDA_SUCCESS)
      : reader(write(sequence, offset, last, result)) {}

  capnp::MallocMessageBuilder message;  // before the reader, which uses it
  capnp::SegmentArrayMessageReader reader;

 private:
  kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> write(uint64_t sequence, uint64_t offset, bool last,
                                                            CUresult result) {
    auto copy = message.initRoot<schema::CopyData>();
    copy.setSequence(sequence);
    copy.setOffset(offset);
    copy.setLast(last);
    copy.setResult(result);
    return message.getSegmentsForOutput();
  }
};

// A host function that reports its run to the test.
struct Ran {
  std::mutex mutex;
  std::condition_variable changed;
  int times = 0;
  CUresult inside = CUDA_SUCCESS;

  static void run(void* self) { static_cast<Ran*>(self)->note(); }
  static void run_in_stream(CUstream, CUresult status, void* self) {
    static_cast<Ran*>(self)->inside = status;
    static_cast<Ran*>(self)->note();
  }
  void note() {
    CUresult synchronised = custom::cuStreamSynchronize(nullptr, false);
    std::lock_guard lock(mutex);
    if (inside == CUDA_SUCCESS) inside = synchronised;
    ++times;
    changed.notify_all();
  }
  void wait(int wanted) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return times >= wanted; });
  }
};

}  // namespace

TEST_CASE(
    "a line of the server's own is on standard error at once, what device code prints only when a call has waited") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  int before = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  test::FakeProcess process;
  Notices& notices = test::part<client::Notices>();
  for (uint8_t descriptor : {2, 0}) {
    capnp::MallocMessageBuilder message;
    message.initRoot<schema::Output>().setDescriptor(descriptor);
    capnp::SegmentArrayMessageReader reader(message.getSegmentsForOutput());
    std::string_view text = descriptor == 0 ? "idle for 4 s" : "assertion\n";
    std::memcpy(notices.bulk_for(wire::NoticeOrdinal::output, reader, text.size()).data, text.data(), text.size());
    notices.bulk_stored(wire::NoticeOrdinal::output, reader, {});
  }
  auto written = [&] {
    char text[100];
    return std::string(text, size_t(std::max<ssize_t>(::read(ends[0], text, sizeof text), 0)));
  };
  std::string at_once = written();
  test::part<client::DeviceOutput>().write();
  std::string later = written();
  ::dup2(before, STDERR_FILENO);
  for (int descriptor : {before, ends[0], ends[1]}) ::close(descriptor);
  CHECK(at_once == "gpuwire: idle for 4 s\n");
  CHECK(later == "assertion\n");
}

TEST_CASE("the data of a copy go where the program asked for them, piece by piece") {
  test::FakeProcess process;
  Notices& notices = test::part<client::Notices>();
  char destination[8] = {};
  test::part<client::PendingCopies>().expect(41, {.data = destination, .bytes = sizeof destination, .scatter = {}});
  CopyNotice first(41, 0, false), second(41, 5, true);
  BulkSink sink = notices.bulk_for(wire::NoticeOrdinal::copy_data, first.reader, 5);
  CHECK(sink.data == destination);
  CHECK(sink.bytes == 5);
  notices.bulk_stored(wire::NoticeOrdinal::copy_data, first.reader, {});
  sink = notices.bulk_for(wire::NoticeOrdinal::copy_data, second.reader, 3);
  CHECK(sink.data == destination + 5);
  notices.bulk_stored(wire::NoticeOrdinal::copy_data, second.reader, {});
  CHECK(notices.bulk_for(wire::NoticeOrdinal::copy_data, first.reader, 5).bytes == 0);
}

TEST_CASE("data that nobody expects, or that would not fit, are not stored") {
  test::FakeProcess process;
  Notices& notices = test::part<client::Notices>();
  char destination[8] = {};
  test::part<client::PendingCopies>().expect(42, {.data = destination, .bytes = sizeof destination, .scatter = {}});
  CopyNotice unknown(43, 0, true), beyond(42, 9, true), whole(42, 0, true), late(42, 7, true);
  CHECK(notices.bulk_for(wire::NoticeOrdinal::copy_data, unknown.reader, 1).bytes == 0);
  CHECK(notices.bulk_for(wire::NoticeOrdinal::copy_data, beyond.reader, 1).bytes == 0);
  CHECK(notices.bulk_for(wire::NoticeOrdinal::copy_data, late.reader, 2).bytes == 0);
  CHECK(notices.bulk_for(wire::NoticeOrdinal::copy_data, whole.reader, 9).bytes == 0);
  CHECK(notices.bulk_for(wire::NoticeOrdinal::copy_data, whole.reader, 8).bytes == 8);
  test::part<client::PendingCopies>().cancel(42);
  CHECK(notices.bulk_for(wire::NoticeOrdinal::copy_data, whole.reader, 8).bytes == 0);
}

TEST_CASE("a pitched destination gets each piece with its place in the whole") {
  test::FakeProcess process;
  Notices& notices = test::part<client::Notices>();
  std::vector<size_t> offsets;
  test::part<client::PendingCopies>().expect(
      44, {.data = nullptr, .bytes = 100, .scatter = [&](size_t offset, std::span<const std::byte>) {
             offsets.push_back(offset);
           }});
  CopyNotice first(44, 0, false), piece(44, 60, true);
  BulkSink sink = notices.bulk_for(wire::NoticeOrdinal::copy_data, first.reader, 60);
  notices.bulk_stored(wire::NoticeOrdinal::copy_data, first.reader, {});
  sink = notices.bulk_for(wire::NoticeOrdinal::copy_data, piece.reader, 40);
  REQUIRE(sink.scatter);
  (*sink.scatter)(10, {});
  CHECK(offsets == std::vector<size_t>{70});
  notices.bulk_stored(wire::NoticeOrdinal::copy_data, piece.reader, {});
}

TEST_CASE("a copy that is said to have gone well, and brings fewer bytes than were asked for, ends the session") {
  test::FakeProcess process;
  Notices& notices = test::part<Notices>();
  PendingCopies& pending = test::part<PendingCopies>();
  char destination[8] = {};
  uint64_t sequence = 50;
  struct Piece {
    uint64_t offset;
    size_t bytes;
  };
  auto comes = [&](std::vector<Piece> pieces, CUresult result) {
    pending.expect(++sequence, {.data = destination, .bytes = sizeof destination, .scatter = {}});
    for (size_t i = 0; i < pieces.size(); ++i) {
      CopyNotice piece(sequence, pieces[i].offset, i + 1 == pieces.size(), result);
      notices.bulk_for(wire::NoticeOrdinal::copy_data, piece.reader, pieces[i].bytes);
      notices.bulk_stored(wire::NoticeOrdinal::copy_data, piece.reader, {});
    }
  };
  for (const std::vector<Piece>& pieces : std::vector<std::vector<Piece>>{
           {{0, 0}}, {{0, 7}}, {{4, 4}}, {{0, 9}}, {{0, 2}, {2, 5}}, {{0, 4}, {0, 4}}, {{0, 4}, {5, 3}}}) {
    CHECK_THROWS(comes(pieces, CUDA_SUCCESS));
    pending.cancel(sequence);
  }
  CHECK_NOTHROW(comes({{0, 8}}, CUDA_SUCCESS));
  CHECK_NOTHROW(comes({{0, 3}, {3, 5}}, CUDA_SUCCESS));
  CHECK_NOTHROW(comes({{0, 0}}, CUDA_ERROR_LAUNCH_FAILED));
  CHECK_FALSE(pending.any());
}

TEST_CASE("a host function that the program does not have ends the session, whose stream would wait for ever") {
  test::FakeProcess process;
  capnp::MallocMessageBuilder message;
  message.initRoot<schema::HostCallback>().setCallback(999);
  capnp::SegmentArrayMessageReader reader(message.getSegmentsForOutput());
  CHECK_THROWS(test::part<Notices>().notice(wire::NoticeOrdinal::host_callback, reader));
}

TEST_CASE("a host function runs when the server says so, and may not wait for the device") {
  test::FakeProcess fake;
  CUcontext context = nullptr;
  REQUIRE(custom::cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(custom::cuCtxSetCurrent(context) == CUDA_SUCCESS);
  Ran ran;
  REQUIRE(custom::cuLaunchHostFunc(nullptr, &Ran::run, &ran, false) == CUDA_SUCCESS);
  uint64_t number = 0;
  fake.session->newest().read<schema::HostFunction>([&](schema::HostFunction::Reader sent) {
    number = sent.getCallback();
    CHECK(sent.getKind() == 0);
  });
  CHECK_FALSE(test::part<client::HostCallbacks>().reached(number + 1, CUDA_SUCCESS));
  REQUIRE(test::part<client::HostCallbacks>().reached(number, CUDA_SUCCESS));
  ran.wait(1);
  CHECK(ran.inside != CUDA_SUCCESS);
  // A stream callback gets an error.
  Ran told;
  REQUIRE(custom::cuStreamAddCallback(nullptr, &Ran::run_in_stream, &told, 0, false) == CUDA_SUCCESS);
  fake.session->newest().read<schema::HostFunction>([&](schema::HostFunction::Reader sent) {
    CHECK(sent.getCallback() == number + 1);
    CHECK(sent.getKind() == 1);
  });
  REQUIRE(test::part<client::HostCallbacks>().reached(number + 1, CUDA_ERROR_LAUNCH_FAILED));
  told.wait(1);
  CHECK(told.inside == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(custom::cuLaunchHostFunc(nullptr, nullptr, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuStreamAddCallback(nullptr, &Ran::run_in_stream, nullptr, 1, false) == CUDA_ERROR_INVALID_VALUE);
  // The thread uses the session until both are answered.
  while (fake.session->count(uint32_t(wire::SessionOrdinal::host_function_done)) < 2) std::this_thread::yield();
}

TEST_CASE("a session that is lost tells stream callbacks, in the order of their calls, and leaves out host functions") {
  test::FakeProcess fake;
  CUcontext context = nullptr;
  REQUIRE(custom::cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(custom::cuCtxSetCurrent(context) == CUDA_SUCCESS);
  HostCallbacks& callbacks = test::part<client::HostCallbacks>();
  Ran left_out, told;
  struct Order {
    std::mutex mutex;
    std::vector<int> told;
  } order;
  struct Turn {
    Order& order;
    int number;
    static void take(CUstream, CUresult, void* self) {
      auto& turn = *static_cast<Turn*>(self);
      std::lock_guard lock(turn.order.mutex);
      turn.order.told.push_back(turn.number);
    }
  };
  std::vector<Turn> turns;
  for (int number = 0; number < 50; ++number) turns.push_back({order, number});
  REQUIRE(custom::cuLaunchHostFunc(nullptr, &Ran::run, &left_out, false) == CUDA_SUCCESS);
  for (Turn& turn : turns) {
    REQUIRE(custom::cuStreamAddCallback(nullptr, &Turn::take, &turn, 0, false) == CUDA_SUCCESS);
  }
  REQUIRE(custom::cuStreamAddCallback(nullptr, &Ran::run_in_stream, &told, 0, false) == CUDA_SUCCESS);
  // The server had called one function before the connection was lost, and the client's thread may not have run it yet.
  fake.session->newest().read<schema::HostFunction>([&](schema::HostFunction::Reader sent) {
    REQUIRE(callbacks.reached(sent.getCallback() - turns.size(), CUDA_SUCCESS));
  });
  fake.session->end_with(CUDA_ERROR_DEVICE_UNAVAILABLE);
  test::part<client::Notices>().ended(CUDA_ERROR_DEVICE_UNAVAILABLE, "gone");
  told.wait(1);
  CHECK(told.inside == CUDA_ERROR_DEVICE_UNAVAILABLE);
  std::vector<int> expected(turns.size());
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(order.told == expected);
  // The host function came before all of them.
  CHECK(left_out.times == 0);
  CHECK(custom::cuStreamAddCallback(nullptr, &Ran::run_in_stream, &told, 0, false) == CUDA_ERROR_DEVICE_UNAVAILABLE);
  callbacks.stop();
  CHECK(told.times == 1);
}
