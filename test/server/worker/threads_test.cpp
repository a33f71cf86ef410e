// The worker's threads one by one: waiters, the watcher, the output capture, the two halves of the connection.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <capnp/message.h>
#include <cuda.h>
#include <doctest/doctest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol/link/link.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/wire/message_reader.hpp"
#include "protocol/wire/ordinals.hpp"
#include "schema/session.capnp.h"
#include "server/base/owned_descriptor.hpp"
#include "server/worker/connection/frame_source.hpp"
#include "server/worker/connection/limits.hpp"
#include "server/worker/connection/link_outbox.hpp"
#include "server/worker/session/output_capture.hpp"
#include "server/worker/session/polling_watcher.hpp"
#include "server/worker/connection/out_of_order_reader.hpp"
#include "server/worker/session/waiter_pool.hpp"
#include "test/server/worker/server_process.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using gpuwire::test::eventually;

namespace {

struct SocketPair {
  OwnedDescriptor ours, theirs;
  SocketPair() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    ours.reset(ends[0]);
    theirs.reset(ends[1]);
  }
  std::unique_ptr<transport::Transport> take_ours() { return transport::adopt_stream(ours.release()); }
};

// Events of a fake driver, which are not ready until the test sets them.
struct PretendedEvent {
  std::atomic<int> result{CUDA_ERROR_NOT_READY};
};
CUresult query(CUevent event) { return CUresult(reinterpret_cast<PretendedEvent*>(event)->result.load()); }
CUevent handle(PretendedEvent& event) { return reinterpret_cast<CUevent>(&event); }

}  // namespace

TEST_CASE("waiters run side by side, and who hands over one more than usual never waits") {
  std::atomic<unsigned> entered{0}, inside{0};
  std::atomic<bool> go{false};
  WaiterPool pool([&] { ++entered; });
  auto wait = [&] {
    ++inside;
    eventually([&] { return go.load(); });
  };
  for (unsigned i = 0; i < kWaitersMax; ++i) {
    CHECK_FALSE(pool.crowded());
    CHECK(pool.run(wait));
  }
  CHECK(pool.crowded());
  // The other tasks may wait for this one.
  CHECK(pool.run([&] { go = true; }));
  CHECK(eventually([&] { return inside == kWaitersMax; }));
  pool.finish();
  CHECK(entered == kWaitersMax + 1);
}

TEST_CASE("one wait more than there may be threads is refused, and the others go on") {
  std::atomic<unsigned> done{0};
  std::atomic<bool> go{false};
  WaiterPool pool([] {});
  for (unsigned i = 0; i < kBlockedWaitersMax; ++i) {
    REQUIRE(pool.run([&] {
      go.wait(false);
      ++done;
    }));
  }
  CHECK_FALSE(pool.run([] {}));
  go = true;
  go.notify_all();
  pool.finish();
  CHECK(done == kBlockedWaitersMax);
}

TEST_CASE("a waiter that has finished takes the next task") {
  std::atomic<unsigned> entered{0}, done{0};
  WaiterPool pool([&] { ++entered; });
  for (unsigned i = 1; i <= 20; ++i) {
    pool.run([&] { ++done; });
    CHECK(eventually([&] { return done == i; }));
  }
  pool.finish();
  CHECK(entered <= 20);
  CHECK(done == 20);
}

TEST_CASE("a watched event is reported once it is done, whatever else is still running") {
  PretendedEvent slow, fast, broken;
  std::atomic<int> slow_told{-1}, fast_told{-1}, broken_told{-1};
  PollingWatcher watcher({&query, nullptr}, kShortSpin.watch_spin_us, [] {});
  REQUIRE(watcher.watch(nullptr, handle(slow), [&](CUresult result) { slow_told = result; }));
  REQUIRE(watcher.watch(nullptr, handle(fast), [&](CUresult result) { fast_told = result; }));
  REQUIRE(watcher.watch(nullptr, handle(broken), [&](CUresult result) { broken_told = result; }));
  fast.result = CUDA_SUCCESS;
  CHECK(eventually([&] { return fast_told == CUDA_SUCCESS; }));
  broken.result = CUDA_ERROR_ILLEGAL_ADDRESS;
  CHECK(eventually([&] { return broken_told == CUDA_ERROR_ILLEGAL_ADDRESS; }));
  CHECK(slow_told == -1);
  slow.result = CUDA_SUCCESS;
  CHECK(eventually([&] { return slow_told == CUDA_SUCCESS; }));
}

TEST_CASE("a callback may watch again") {
  PretendedEvent first, second;
  first.result = second.result = CUDA_SUCCESS;
  std::atomic<bool> told{false};
  PollingWatcher watcher({&query, nullptr}, 0, [] {});
  REQUIRE(watcher.watch(nullptr, handle(first),
                        [&](CUresult) { watcher.watch(nullptr, handle(second), [&](CUresult) { told = true; }); }));
  CHECK(eventually([&] { return told.load(); }));
}

TEST_CASE("a watch without an event is reported at the next poll, in its context and beside running work") {
  PretendedEvent slow;
  static std::atomic<CUcontext> current;
  std::atomic<CUcontext> seen{nullptr};
  std::atomic<int> slow_told{-1}, told{-1};
  const auto context = reinterpret_cast<CUcontext>(uintptr_t{0x51});
  PollingWatcher watcher({&query, [](CUcontext given) { return current = given, CUDA_SUCCESS; }}, 0, [] {});
  REQUIRE(watcher.watch(nullptr, handle(slow), [&](CUresult result) { slow_told = result; }));
  REQUIRE(watcher.watch(context, nullptr, [&](CUresult result) { seen = current.load(), told = result; }));
  CHECK(eventually([&] { return told == CUDA_SUCCESS; }));
  CHECK(seen == context);
  CHECK(slow_told == -1);
}

TEST_CASE("a watcher that watches as many events as it may still takes what has no event") {
  PretendedEvent slow;
  std::atomic<int> told{-1};
  PollingWatcher watcher({&query, nullptr}, 0, [] {});
  for (size_t i = 0; i < kWatchedMax; ++i) REQUIRE(watcher.watch(nullptr, handle(slow), [](CUresult) {}));
  CHECK_FALSE(watcher.watch(nullptr, handle(slow), [](CUresult) {}));
  REQUIRE(watcher.watch(nullptr, nullptr, [&](CUresult result) { told = result; }));
  CHECK(eventually([&] { return told == CUDA_SUCCESS; }));
}

TEST_CASE("a stopped watcher takes nothing and tells nothing") {
  PretendedEvent event;
  std::atomic<bool> told{false};
  PollingWatcher watcher({&query, nullptr}, 0, [] {});
  REQUIRE(watcher.watch(nullptr, handle(event), [&](CUresult) { told = true; }));
  watcher.stop();
  event.result = CUDA_SUCCESS;
  CHECK(!watcher.watch(nullptr, handle(event), [&](CUresult) { told = true; }));
  CHECK(!told);
}

TEST_CASE("text printed before a drain has been given to the sink when it returns") {
  std::string out, err;
  OutputCapture capture;
  REQUIRE(capture.start([&](uint8_t descriptor, std::span<const std::byte> text) {
    (descriptor == 1 ? out : err).append(reinterpret_cast<const char*>(text.data()), text.size());
  }));
  std::printf("buffered");
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, "assertion\n", 10);
  capture.drain();
  capture.stop();
  CHECK(out == "buffered");
  CHECK(err == "assertion\n");
}

TEST_CASE("the server's own lines are given to the sink one by one, apart from what is printed") {
  std::vector<std::string> lines;
  OutputCapture capture;
  capture.log_stderr("before the start");
  REQUIRE(capture.start([&](uint8_t descriptor, std::span<const std::byte> text) {
    if (descriptor == OutputCapture::kServerLine)
      lines.emplace_back(reinterpret_cast<const char*>(text.data()), text.size());
  }));
  capture.log_stderr("idle for 4 s");
  capture.log_stderr("idle for 8 s");
  capture.drain();
  capture.stop();
  CHECK(lines == std::vector<std::string>{"before the start", "idle for 4 s", "idle for 8 s"});
}

TEST_CASE("more text than a pipe holds passes through") {
  size_t received = 0;
  OutputCapture capture;
  REQUIRE(capture.start([&](uint8_t, std::span<const std::byte> text) { received += text.size(); }));
  constexpr size_t kLines = 100'000;
  for (size_t i = 0; i < kLines; ++i) std::fputs("0123456789abcdef0123456789abcdef\n", stdout);
  capture.drain();
  capture.stop();
  CHECK(received == kLines * 33);
}

TEST_CASE("a message of several segments is sent as one") {
  SocketPair sockets;
  link::Link link(sockets.take_ours());
  LinkMeter meter;
  LinkOutbox outbox(link, meter);
  capnp::MallocMessageBuilder builder(8, capnp::AllocationStrategy::FIXED_SIZE);
  auto ending = builder.initRoot<schema::Ending>();
  std::string reason(1000, 'r');
  ending.setReason(reason);
  ending.setResult(3);
  REQUIRE(builder.getSegmentsForOutput().size() > 1);
  outbox.notice(wire::NoticeOrdinal::ending, builder);

  wire::FrameHeader header;
  REQUIRE(::recv(sockets.theirs.get(), &header, sizeof header, MSG_WAITALL) == sizeof header);
  CHECK(header.sequence == 1);
  std::vector<capnp::word> words(header.message_words);
  REQUIRE(::recv(sockets.theirs.get(), words.data(), words.size() * 8, MSG_WAITALL) == ssize_t(words.size() * 8));
  kj::ArrayPtr<const capnp::word> segment = kj::arrayPtr(words.data(), words.size());
  capnp::SegmentArrayMessageReader reader(kj::arrayPtr(&segment, 1));
  CHECK(std::string(reader.getRoot<schema::Ending>().getReason().cStr()) == reason);
}

TEST_CASE("frames of several threads do not mix") {
  SocketPair sockets;
  constexpr unsigned kThreads = 4, kFrames = 200;
  std::vector<std::byte> bulk(10'001, std::byte{0x5a});
  {
    link::Link link(sockets.take_ours());
    LinkMeter meter;
    LinkOutbox outbox(link, meter);
    std::vector<std::thread> senders;
    for (unsigned t = 0; t < kThreads; ++t) {
      senders.emplace_back([&, t] {
        for (unsigned i = 0; i < kFrames; ++i) {
          capnp::MallocMessageBuilder builder(64);
          builder.initRoot<schema::Result>().setResult(int(i));
          outbox.reply(t * kFrames + i, builder, bulk);
        }
      });
    }
    std::vector<bool> seen(kThreads * kFrames);
    for (unsigned i = 0; i < kThreads * kFrames; ++i) {
      wire::FrameHeader header;
      REQUIRE(::recv(sockets.theirs.get(), &header, sizeof header, MSG_WAITALL) == sizeof header);
      REQUIRE(header.magic == wire::FrameHeader::kMagic);
      REQUIRE(header.bulk_bytes == bulk.size());
      std::vector<std::byte> rest(header.message_words * 8 + header.bulk_bytes);
      REQUIRE(::recv(sockets.theirs.get(), rest.data(), rest.size(), MSG_WAITALL) == ssize_t(rest.size()));
      seen[header.sequence] = true;
    }
    for (std::thread& sender : senders) sender.join();
    CHECK(std::count(seen.begin(), seen.end(), true) == kThreads * kFrames);
  }
}

TEST_CASE("a client that is gone makes the outbox drop, not block") {
  SocketPair sockets;
  link::Link link(sockets.take_ours());
  LinkMeter meter;
  LinkOutbox outbox(link, meter);
  sockets.theirs.reset();
  capnp::MallocMessageBuilder builder(64);
  builder.initRoot<schema::Result>();
  for (int i = 0; i < 3; ++i) outbox.reply(1, builder);
  std::byte byte;
  CHECK(link.try_receive({&byte, 1}).status == transport::IoStatus::closed);
}

TEST_CASE("frames and bulk come out as they went in, however they were cut") {
  SocketPair sockets;
  link::Link link(sockets.take_ours());
  LinkMeter meter;
  FrameSource source(link, meter, 0);
  std::vector<std::byte> stream;
  auto append = [&](const void* data, size_t bytes) {
    stream.insert(stream.end(), static_cast<const std::byte*>(data), static_cast<const std::byte*>(data) + bytes);
  };
  constexpr size_t kBulks[] = {0, 1, 13, 70'000, 3};
  for (uint64_t i = 0; i < std::size(kBulks); ++i) {
    capnp::MallocMessageBuilder builder(64);
    builder.initRoot<schema::Source>().setBytes(i);
    auto segment = builder.getSegmentsForOutput()[0];
    wire::FrameHeader header;
    header.kind = uint8_t(wire::FrameKind::called);
    header.ordinal = 3;
    header.sequence = i + 1;
    header.message_words = uint32_t(segment.size());
    header.bulk_bytes = kBulks[i];
    append(&header, sizeof header);
    append(segment.begin(), segment.size() * 8);
    for (size_t b = 0; b < kBulks[i]; ++b) stream.push_back(std::byte(b * 7 + i));
  }
  std::thread sender([&] {
    for (size_t at = 0, step = 1; at < stream.size(); at += step, step = step * 3 % 4001 + 1) {
      step = std::min(step, stream.size() - at);
      if (::send(sockets.theirs.get(), stream.data() + at, step, MSG_NOSIGNAL) < 0) return;
    }
    sockets.theirs.reset();
  });
  for (uint64_t i = 0; i < std::size(kBulks); ++i) {
    REQUIRE(source.next() == FrameSource::Next::frame);
    CHECK(source.header().sequence == i + 1);
    wire::SegmentReader reader(source.message());
    CHECK(reader.getRoot<schema::Source>().getBytes() == i);
    CHECK(source.remaining() == kBulks[i]);
    if (i == 3) continue;  // unread bulk: next() discards it
    std::vector<std::byte> bulk(kBulks[i]);
    REQUIRE(source.read(bulk));
    for (size_t b = 0; b < bulk.size(); ++b) REQUIRE(bulk[b] == std::byte(b * 7 + i));
    std::byte beyond;
    CHECK(!source.read({&beyond, 1}));
  }
  CHECK(source.next() == FrameSource::Next::ended);
  sender.join();
}

TEST_CASE("a source that is woken ends its wait, and one with a deadline keeps it") {
  SocketPair sockets;
  link::Link link(sockets.take_ours());
  LinkMeter meter;
  FrameSource source(link, meter, 0);
  CHECK(!source.input_pending());
  CHECK(source.next(1) == FrameSource::Next::late);
  wire::FrameHeader half;
  CHECK(::send(sockets.theirs.get(), &half, 5, 0) == 5);
  CHECK(source.input_pending());
  std::thread waker([&] { link.interrupt(); });
  CHECK(source.next() == FrameSource::Next::ended);
  waker.join();
  CHECK(source.input_pending());
}

TEST_CASE(
    "heartbeats do not wake a session that sleeps, whole or in pieces they are no fault, and a frame behind them is "
    "found") {
  SocketPair sockets;
  link::Link link(sockets.take_ours());
  LinkMeter meter;
  FrameSource source(link, meter, 0);
  source.expect_heartbeats();
  std::vector<bool> told;  // written by the reading thread
  std::atomic<bool> asleep{false};
  source.observe_sleep([&](bool sleeps) {
    told.push_back(sleeps);
    asleep = sleeps;
  });
  wire::FrameHeader heartbeat{.kind = uint8_t(wire::FrameKind::control),
                              .ordinal = uint32_t(wire::ControlOrdinal::heartbeat)};
  wire::FrameHeader frame{.kind = uint8_t(wire::FrameKind::posted), .ordinal = 3, .sequence = 1};
  constexpr int kHeartbeats = 100;
  std::thread sender([&] {
    eventually([&] { return asleep.load(); });
    auto taken = [&] {
      int unread = 1;
      while (::ioctl(sockets.theirs.get(), SIOCOUTQ, &unread) == 0 && unread != 0) std::this_thread::yield();
    };
    for (int i = 0; i < kHeartbeats; ++i) {
      ::send(sockets.theirs.get(), &heartbeat, sizeof heartbeat, MSG_NOSIGNAL);
      taken();
    }
    ::send(sockets.theirs.get(), &frame, sizeof frame, MSG_NOSIGNAL);
  });
  REQUIRE(source.next() == FrameSource::Next::frame);
  sender.join();
  CHECK(source.header().sequence == 1);
  CHECK(source.frame_end() == (kHeartbeats + 1) * sizeof frame);
  CHECK(told == std::vector<bool>{true, false});

  char both[2 * sizeof heartbeat];
  std::memcpy(both, &heartbeat, sizeof heartbeat);
  std::memcpy(both + sizeof heartbeat, &heartbeat, sizeof heartbeat);
  CHECK(::send(sockets.theirs.get(), both, sizeof heartbeat + 7, 0) > 0);
  REQUIRE(source.next() == FrameSource::Next::frame);
  CHECK(source.header().ordinal == uint32_t(wire::ControlOrdinal::heartbeat));
  CHECK(::send(sockets.theirs.get(), both + 7, sizeof heartbeat - 7, 0) > 0);
  REQUIRE(source.next() == FrameSource::Next::frame);
  CHECK(source.header().ordinal == uint32_t(wire::ControlOrdinal::heartbeat));
}

namespace {

constexpr uint32_t kOrdinary = 3, kAnswer = 77;

// A client's consecutive frames; each message has its number.
struct ClientBytes {
  std::vector<std::byte> bytes;
  uint64_t frames = 0;
  void add(uint32_t ordinal, size_t bulk_bytes) {
    capnp::MallocMessageBuilder builder(64);
    builder.initRoot<schema::Source>().setBytes(++frames);
    auto segment = builder.getSegmentsForOutput()[0];
    wire::FrameHeader header;
    header.kind = uint8_t(wire::FrameKind::posted);
    header.ordinal = ordinal;
    header.sequence = frames;
    header.message_words = uint32_t(segment.size());
    header.bulk_bytes = bulk_bytes;
    append(&header, sizeof header);
    append(segment.begin(), segment.size() * sizeof(capnp::word));
    for (size_t i = 0; i < bulk_bytes; ++i) bytes.push_back(std::byte(i * 7 + frames));
  }
  void append(const void* data, size_t count) {
    bytes.insert(bytes.end(), static_cast<const std::byte*>(data), static_cast<const std::byte*>(data) + count);
  }
  void send(int socket) {
    for (size_t at = 0; at < bytes.size();) {
      ssize_t sent = ::send(socket, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent < 0) return;
      at += size_t(sent);
    }
  }
};

bool is_bulk_of(uint64_t frame, std::span<const std::byte> bulk) {
  for (size_t i = 0; i < bulk.size(); ++i) {
    if (bulk[i] != std::byte(i * 7 + frame)) return false;
  }
  return true;
}

// An executor's side of a connection with an out-of-order reader. It counts answers, and checks their bulk.
struct OutOfOrderReaderFixture {
  SocketPair sockets;
  link::Link link{sockets.take_ours()};
  LinkMeter meter;
  FrameSource source{link, meter, 0};
  ReplayEntry answer{.name = "answer", .posted = true, .out_of_turn = true, .bulk_bytes_max = kOutOfTurnBulkBytesMax};
  std::atomic<unsigned> awaited{0}, executed{0}, wrong{0}, faults{0}, asked{0};
  OutOfOrderReader out_of_order_reader{{.source = source,
                                        .awaited = [this] { return awaited.load() != 0; },
                                        .out_of_turn =
                                            [this](const wire::FrameHeader& header) {
                                              ++asked;
                                              return header.ordinal == kAnswer ? &answer : nullptr;
                                            },
                                        .execute =
                                            [this](const ReplayEntry&, Call& call) {
                                              std::vector<std::byte> bulk(call.bulk.remaining());
                                              bool right = call.bulk.read(bulk) &&
                                                           is_bulk_of(call.header.sequence, bulk) &&
                                                           call.message.getRoot<schema::Source>().getBytes() ==
                                                               call.header.sequence;
                                              wrong += !right;
                                              ++executed;
                                              --awaited;
                                            },
                                        .fault = [this](std::string) { ++faults; },
                                        .kept_bytes_max = kKept,
                                        .kept_while_busy_max = kKeptWhileBusy}};
  static constexpr size_t kKept = 4u << 20, kKeptWhileBusy = 3u << 20;

  // Returns the number of bytes that the executor has not taken. Waits for its turn.
  size_t kept() {
    size_t bytes = 0;
    eventually([&] { return source.take_over(); });
    bytes = source.kept_bytes();
    source.give_back();
    return bytes;
  }

  // Reads the next frame like the executor and checks it.
  void take(uint64_t frame, size_t bulk_bytes) {
    REQUIRE(source.next() == FrameSource::Next::frame);
    CHECK(source.header().sequence == frame);
    wire::SegmentReader reader(source.message());
    CHECK(reader.getRoot<schema::Source>().getBytes() == frame);
    std::vector<std::byte> bulk(bulk_bytes);
    CHECK(source.remaining() == bulk_bytes);
    REQUIRE(source.read(bulk));
    CHECK(is_bulk_of(frame, bulk));
  }
  bool answered(unsigned count) {
    return eventually([&] { return executed.load() == count; });
  }
};

}  // namespace

TEST_CASE_FIXTURE(OutOfOrderReaderFixture,
                  "an answer is found while the executor is kept, and the executor finds every byte in order") {
  // Around the answer: bulk that does not fit into one read, odd lengths, and an answer with bulk of its own.
  constexpr size_t kBulks[] = {900'001, 13, 0, 1'000'003, 40'000, 0, 5, 0};
  constexpr uint32_t kOrdinals[] = {kOrdinary, kOrdinary, kAnswer, kOrdinary, kAnswer, kOrdinary, kOrdinary, kAnswer};
  ClientBytes client, later;
  for (size_t i = 0; i < 7; ++i) client.add(kOrdinals[i], kBulks[i]);
  std::thread sender([&] { client.send(sockets.theirs.get()); });
  // The reader starts in the middle of the first frame's bulk.
  REQUIRE(source.next() == FrameSource::Next::frame);
  std::vector<std::byte> half(100'000);
  REQUIRE(source.read(half));
  out_of_order_reader.start();
  awaited = 2;
  out_of_order_reader.awake();
  CHECK(answered(2));
  std::vector<std::byte> rest(kBulks[0] - half.size());
  REQUIRE(source.read(rest));
  half.insert(half.end(), rest.begin(), rest.end());
  CHECK(is_bulk_of(1, half));
  take(2, kBulks[1]);
  take(3, kBulks[2]);
  CHECK(source.seen_ahead());
  // The reader starts again, with its buffer partly consumed.
  sender.join();
  awaited = 1;
  out_of_order_reader.awake();
  later.frames = client.frames;
  later.add(kOrdinals[7], kBulks[7]);
  later.send(sockets.theirs.get());
  CHECK(answered(3));
  for (uint64_t frame = 4; frame <= std::size(kBulks); ++frame) {
    take(frame, kBulks[frame - 1]);
    CHECK(source.seen_ahead());
  }
  CHECK(!source.input_pending());
  // From the connection again: the reader has not seen these frames.
  ClientBytes more;
  more.frames = later.frames;
  more.add(kOrdinary, 10);
  more.send(sockets.theirs.get());
  take(more.frames, 10);
  CHECK(!source.seen_ahead());
  out_of_order_reader.stop();
  CHECK(wrong == 0);
  CHECK(faults == 0);
}

TEST_CASE_FIXTURE(OutOfOrderReaderFixture,
                  "an answer does not pass a write that the executor has in hand, however slow it is") {
  ClientBytes client;
  client.add(kAnswer, 3);
  client.add(kAnswer, 5);
  client.send(sockets.theirs.get());
  REQUIRE(source.next() == FrameSource::Next::frame);
  out_of_order_reader.start();
  awaited = 1;
  out_of_order_reader.awake();
  // The thread has polled several times by then.
  CHECK(eventually([&] { return asked.load() >= 3; }));
  CHECK(executed == 0);
  std::vector<std::byte> write(3);
  REQUIRE(source.read(write));
  take(2, 5);
  CHECK(!source.seen_ahead());
  awaited = 0;
  out_of_order_reader.stop();
  CHECK(executed == 0);
}

TEST_CASE_FIXTURE(
    OutOfOrderReaderFixture,
    "while the executor is in one call, what has come is kept and not executed, to the connection's end") {
  // More than the pair holds: the sender ends only when the bytes are read.
  constexpr size_t kBulks[] = {0, 1'500'007, 5, 900'001};
  ClientBytes client;
  client.add(kOrdinary, kBulks[0]);
  client.send(sockets.theirs.get());
  REQUIRE(source.next() == FrameSource::Next::frame);
  ClientBytes more;
  more.frames = 1;
  more.add(kOrdinary, kBulks[1]);
  more.add(kAnswer, kBulks[2]);
  more.add(kOrdinary, kBulks[3]);
  std::atomic<bool> sent{false};
  std::thread sender([&] {
    more.send(sockets.theirs.get());
    sent = true;
  });
  out_of_order_reader.start();
  CHECK(eventually([&] {
    out_of_order_reader.keep_what_has_come();
    return sent.load();
  }));
  sender.join();
  for (uint64_t frame = 2; frame <= 4; ++frame) {
    take(frame, kBulks[frame - 1]);
    CHECK_FALSE(source.seen_ahead());
    // The out-of-order reader does nothing while the executor reads.
    out_of_order_reader.keep_what_has_come();
  }
  out_of_order_reader.stop();
  CHECK(executed == 0);
  CHECK(faults == 0);
}

TEST_CASE_FIXTURE(OutOfOrderReaderFixture,
                  "no more is kept than may be while the executor is in one call, and it finds the rest itself") {
  ClientBytes client;
  client.add(kOrdinary, 0);
  client.add(kOrdinary, 3 * kKeptWhileBusy);
  std::thread sender([&] { client.send(sockets.theirs.get()); });
  REQUIRE(source.next() == FrameSource::Next::frame);
  out_of_order_reader.start();
  CHECK(eventually([&] {
    out_of_order_reader.keep_what_has_come();
    return kept() >= kKeptWhileBusy;
  }));
  for (int i = 0; i < 10; ++i) out_of_order_reader.keep_what_has_come();
  out_of_order_reader.awake();
  CHECK(kept() < 2 * kKeptWhileBusy);
  take(2, 3 * kKeptWhileBusy);
  sender.join();
  out_of_order_reader.stop();
  CHECK(faults == 0);
}

TEST_CASE_FIXTURE(OutOfOrderReaderFixture,
                  "an executor that comes back gets the connection at once, also again and again") {
  constexpr uint64_t kRounds = 200;
  out_of_order_reader.start();
  awaited = 1;
  out_of_order_reader.awake();
  for (uint64_t round = 1; round <= kRounds; ++round) {
    ClientBytes client;
    client.frames = 2 * (round - 1);
    client.add(kAnswer, 3);
    client.add(kOrdinary, 5);
    client.send(sockets.theirs.get());
    take(2 * round - 1, 3);
    // Either the executor or the reader has executed the answer.
    if (!source.seen_ahead()) {
      ++executed;
      --awaited;
    }
    CHECK(answered(unsigned(round)));
    awaited = 1;
    take(2 * round, 5);
  }
  awaited = 0;
  out_of_order_reader.stop();
  CHECK(wrong == 0);
}

TEST_CASE_FIXTURE(OutOfOrderReaderFixture,
                  "bytes that cannot be a frame are a fault, and the executor comes to them too") {
  ClientBytes client;
  client.add(kOrdinary, 0);
  client.append("no frame at all, and long enough to be one", 42);
  client.send(sockets.theirs.get());
  REQUIRE(source.next() == FrameSource::Next::frame);
  out_of_order_reader.start();
  awaited = 1;
  out_of_order_reader.awake();
  CHECK(eventually([&] { return faults.load() == 1; }));
  CHECK(source.next() == FrameSource::Next::fault);
}

TEST_CASE_FIXTURE(OutOfOrderReaderFixture,
                  "a client that sends more than it may without an acknowledgement is a fault") {
  ClientBytes client;
  client.add(kOrdinary, 0);
  client.send(sockets.theirs.get());
  REQUIRE(source.next() == FrameSource::Next::frame);
  out_of_order_reader.start();
  awaited = 1;
  out_of_order_reader.awake();
  // More than one read beyond the bound; the rest stays unread.
  std::thread sender([&] {
    ClientBytes more;
    more.frames = client.frames;
    more.add(kOrdinary, kKept + (1u << 20));
    more.send(sockets.theirs.get());
  });
  CHECK(eventually([&] { return faults.load() == 1; }));
  out_of_order_reader.stop();
  link.end();
  sender.join();
}
