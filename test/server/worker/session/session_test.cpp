// Sessions in real processes: gpuwire-serve, gpuwire-worker, and a mock driver opened by name.
#include <csignal>
#include <cstdlib>
#include <random>
#include <utility>

#include <cuda.h>
#include <doctest/doctest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "protocol/wire/limits.hpp"
#include "protocol/wire/preface.hpp"
#include "server/worker/connection/limits.hpp"
#include "schema/api_memory.capnp.h"
#include "schema/handshake.capnp.h"
#include "test/server/worker/server_process.hpp"
#include "test/server/worker/wire_client.hpp"
#include "wire/session_frames.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::FrameKind;
using wire::SessionOrdinal;

namespace {

// protocol/api/{memory,context}.toml
constexpr uint32_t kMemAlloc = 1800;
constexpr uint32_t kMemFree = 1803;
constexpr uint32_t kCtxSynchronize = 1203;
// mock_driver.cpp
constexpr uint64_t kAllocationThatHangs = 0xdead'0001;
constexpr uint64_t kAllocationThatCrashes = 0xdead'0002;
constexpr uint64_t kAllocationThatPrints = 0xdead'0003;

constexpr unsigned kLooksAtFullBuffers = 10;  // consecutive polls that find them full

std::vector<std::string> mock_arguments(std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"--device",       "software", "--software-library", GPUWIRE_TEST_MOCK_DRIVER,
                                     "--module-cache", "none"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

uint64_t send_alloc(WireClient& client, uint32_t context, uint64_t bytes) {
  return client.send_call<schema::CuMemAllocV2Params>(
      FrameKind::called, kMemAlloc, context,
      [&](schema::CuMemAllocV2Params::Builder params) { params.setBytesize(bytes); });
}

struct Allocated {
  int32_t result = -1;
  uint64_t address = 0;
};
Allocated allocate(WireClient& client, uint32_t context, uint64_t bytes) {
  Allocated allocated;
  auto answer = client.reply(send_alloc(client, context, bytes));
  if (answer) {
    answer->with<schema::CuMemAllocV2Results>([&](schema::CuMemAllocV2Results::Reader results) {
      allocated = {results.getResult(), results.getDptr()};
    });
  }
  return allocated;
}

// A session's worker cannot be distinguished from a prewarmed worker. So the test checks that all workers present at
// the end of a session exit.
bool all_gone(const std::set<pid_t>& pids) {
  for (pid_t pid : pids) {
    if (process_exists(pid)) return false;
  }
  return true;
}

// Sends until both systems' buffers are full. One failed send does not prove that, because the system moves bytes on
// and makes room later: the buffers are full when unsent bytes remain and several polls find no progress. If the worker
// reads on and frees room again and again, half of kKeptWhileBusyBytesMax is enough.
void fill(int socket) {
  const std::vector<std::byte> piece(1u << 20);
  constexpr size_t kEnough = server::kKeptWhileBusyBytesMax / 2;
  size_t sent = 0;
  int unsent_before = 0;
  unsigned looks = 0;
  CHECK(eventually([&] {
    ssize_t taken = 0;
    while (sent < kEnough && (taken = ::send(socket, piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
      sent += size_t(taken);
    int unsent = 0;
    REQUIRE(::ioctl(socket, SIOCOUTQNSD, &unsent) == 0);
    looks = unsent > 0 && unsent == std::exchange(unsent_before, unsent) ? looks + 1 : 0;
    return looks == kLooksAtFullBuffers || sent >= kEnough;
  }));
}

}  // namespace

TEST_CASE("the server says where it listens and on which device") {
  ServerProcess server(mock_arguments());
  CHECK(server.port() != 0);
  CHECK(server.line().find("2 x mock device 0, software device") != std::string::npos);
}

TEST_CASE("a server without a device says why and ends with status 1") {
  ::setenv("GPUWIRE_MOCK_NO_DEVICE", "1", 1);
  ServerProcess server(mock_arguments());
  ::unsetenv("GPUWIRE_MOCK_NO_DEVICE");
  CHECK(server.port() == 0);
  CHECK(server.wait() == 1);
  CHECK(server.log().find("CUDA_ERROR_NO_DEVICE (100)") != std::string::npos);
}

TEST_CASE("an address that is not loopback needs to be allowed in so many words") {
  ServerProcess refused(mock_arguments(), "0.0.0.0:0");
  CHECK(refused.wait() == 2);
  CHECK(refused.log().find("--allow-unencrypted-network") != std::string::npos);
}

TEST_CASE("the Welcome tells the facts of every device and which calls are known") {
  ServerProcess server(mock_arguments());
  WireClient client;
  std::string text;
  REQUIRE(client.connect(server.port()));
  REQUIRE(client.log_in(text));
  REQUIRE(client.send_hello());
  auto frame = client.receive();
  REQUIRE(frame);
  frame->with<schema::Welcome>([](schema::Welcome::Reader welcome) {
    CHECK(welcome.getDriverVersion() == 13000);
    CHECK(welcome.getSoftware());
    CHECK(welcome.getSessionId().size() == 16);
    REQUIRE(welcome.getDevices().size() == 2);
    auto device = welcome.getDevices()[1];
    CHECK(std::string(device.getName().cStr()) == "mock device 1");
    CHECK(device.getAttributes()[CU_DEVICE_ATTRIBUTE_WARP_SIZE] == 32);
    CHECK(device.getAttributeErrors()[CU_DEVICE_ATTRIBUTE_WARP_SIZE] == 0);
    CHECK(device.getAttributeErrors()[CU_DEVICE_ATTRIBUTE_CLOCK_RATE] == CUDA_ERROR_INVALID_VALUE);
    CHECK(device.getLimits()[CU_LIMIT_PRINTF_FIFO_SIZE] == 1024 * (1 + CU_LIMIT_PRINTF_FIFO_SIZE));
    CHECK(device.getStreamPriorityGreatest() == -5);
    auto ordinals = welcome.getOrdinals();
    auto knows = [&](uint32_t ordinal) { return ordinals[ordinal / 8] >> ordinal % 8 & 1; };
    CHECK(knows(uint32_t(SessionOrdinal::ping)));
    CHECK(knows(kMemAlloc));
    CHECK(!knows(999));
    CHECK(!knows(0));
  });
}

TEST_CASE("the memory of a session's first context is requested when its worker learns the answer") {
  ::setenv("GPUWIRE_MOCK_CONTEXT_BYTES", "100000000", 1);  // more than a session has without asking
  ServerProcess server(mock_arguments());
  ::unsetenv("GPUWIRE_MOCK_CONTEXT_BYTES");
  WireClient client;
  REQUIRE(client.open_session(server.port()));
  CHECK(allocate(client, client.retain_primary(), 4096).result == 0);
  CHECK(server.log().find("no answer") == std::string::npos);
}

TEST_CASE("ping, sink and source measure the connection, also with bulk of odd lengths between frames") {
  ServerProcess server(mock_arguments());
  WireClient client;
  REQUIRE(client.open_session(server.port()));
  CHECK(client.ping() == 0);
  for (size_t bytes : {size_t{1}, size_t{7}, size_t{4096}, size_t{3'000'001}}) {
    std::vector<std::byte> bulk(bytes);
    CHECK(client.reply(client.send_empty(FrameKind::called, uint32_t(SessionOrdinal::sink), 0, bulk)).has_value());
    auto source =
        client.reply(client.send_call<schema::Source>(FrameKind::called, uint32_t(SessionOrdinal::source), 0,
                                                      [&](schema::Source::Builder params) { params.setBytes(bytes); }));
    REQUIRE(source);
    CHECK(source->bulk.size() == bytes);
  }
  CHECK(client.ping() == 0);
}

TEST_CASE("a session tells where its time at the server went, also while its context is not there") {
  ServerProcess server(mock_arguments());
  WireClient client;
  REQUIRE(client.open_session(server.port()));
  uint64_t age = 0, input = 0;
  auto ask = [&](uint32_t context) {
    auto answer =
        client.reply(client.send_empty(FrameKind::called, uint32_t(SessionOrdinal::session_account), context));
    REQUIRE(answer);
    answer->with<schema::SessionAccountReply>([&](schema::SessionAccountReply::Reader reply) {
      CHECK(reply.getResult() == 0);
      // The worker waits for a silent client, and no time counts in two parts.
      CHECK(reply.getAgeNs() > age);
      CHECK(reply.getInputNs() >= input);
      CHECK(reply.getInputNs() + reply.getDeviceNs() + reply.getHeldNs() <= reply.getAgeNs());
      CHECK(reply.getHeld() == 0);
      age = reply.getAgeNs();
      input = reply.getInputNs();
    });
  };
  ask(0);
  CHECK(client.ping() == 0);
  ask(1234);
  CHECK(input > 0);
}

TEST_CASE("generated calls run in the context that the frame names") {
  ServerProcess server(mock_arguments());
  WireClient client;
  REQUIRE(client.open_session(server.port()));
  uint32_t context = client.retain_primary();
  Allocated allocated = allocate(client, context, 4096);
  CHECK(allocated.result == CUDA_SUCCESS);
  CHECK(allocated.address != 0);
  CHECK(allocate(client, context, 0).result == CUDA_ERROR_INVALID_VALUE);
  CHECK(allocate(client, context, uint64_t{1} << 40).result == CUDA_ERROR_OUT_OF_MEMORY);
  client.send_call<schema::CuMemFreeV2Params>(
      FrameKind::posted, kMemFree, context,
      [&](schema::CuMemFreeV2Params::Builder params) { params.setDptr(allocated.address); });
  CHECK(client.ping() == 0);
}

TEST_CASE("frames are acknowledged before the client's window is full") {
  ServerProcess server(mock_arguments());
  WireClient client;
  REQUIRE(client.open_session(server.port()));
  uint64_t last = 0;
  std::vector<std::byte> bulk(wire::kPostedBulkBytesMax);
  for (size_t bytes = 0; bytes < wire::kAcknowledgeBytes; bytes += bulk.size())
    last = client.send_empty(FrameKind::called, uint32_t(SessionOrdinal::sink), 0, bulk);
  bool acknowledged = false;
  for (uint64_t replies = 0; replies < last;) {
    auto frame = client.receive();
    REQUIRE(frame);
    replies += frame->header.kind == uint8_t(FrameKind::reply);
    acknowledged |=
        frame->header.kind == uint8_t(FrameKind::acknowledge) && frame->header.sequence >= wire::kAcknowledgeBytes;
  }
  CHECK((acknowledged || client.receive()->header.kind == uint8_t(FrameKind::acknowledge)));
}

TEST_CASE("the driver's output reaches the client as output notices") {
  ServerProcess server(mock_arguments());
  WireClient client;
  REQUIRE(client.open_session(server.port()));
  uint32_t context = client.retain_primary();
  CHECK(allocate(client, context, kAllocationThatPrints).result == CUDA_ERROR_OUT_OF_MEMORY);
  // The reply comes after the text.
  auto synchronised = client.reply(client.send_empty(FrameKind::called, kCtxSynchronize, context));
  REQUIRE(synchronised);
  std::string text;
  for (const ReceivedFrame& notice : client.notices) {
    if (notice.header.ordinal != uint32_t(wire::NoticeOrdinal::output)) continue;
    text.append(reinterpret_cast<const char*>(notice.bulk.data()), notice.bulk.size());
  }
  CHECK(text == "hello from the device\n");
}

TEST_CASE("a peer that does not speak gpuwire is told so at once") {
  ServerProcess server(mock_arguments());
  WireClient client;
  REQUIRE(client.connect(server.port()));
  std::string request = "GET / HTTP/1.1\r\n\r\n";
  REQUIRE(client.send(std::as_bytes(std::span(request))));
  std::string text;
  auto preface = client.read_preface(text);
  REQUIRE(preface);
  CHECK(preface->status == uint32_t(wire::RefusalCode::not_gpuwire));
  CHECK(text.find("GET /") != std::string::npos);
}

TEST_CASE("another protocol version is refused by naming both") {
  ServerProcess server(mock_arguments());
  WireClient client;
  REQUIRE(client.connect(server.port()));
  wire::Preface other = wire::own_preface();
  other.protocol_major = 77;
  REQUIRE(client.send(wire::encode(other)));
  std::string text;
  auto preface = client.read_preface(text);
  REQUIRE(preface);
  CHECK(preface->status == uint32_t(wire::RefusalCode::version));
  CHECK(text.find("77.0") != std::string::npos);
  CHECK(text.find("1.0") != std::string::npos);
}

TEST_CASE("frames that cannot be end their session with a reason, and no other session notices") {
  ServerProcess server(mock_arguments());
  WireClient bystander;
  REQUIRE(bystander.open_session(server.port()));
  auto ends_with = [&](const char* reason, auto&& misbehave) {
    CAPTURE(reason);
    WireClient client;
    REQUIRE(client.open_session(server.port()));
    misbehave(client);
    std::string said = client.reason_of_end();
    CAPTURE(said);
    CHECK(said.find(reason) != std::string::npos);
    CHECK(bystander.ping() == 0);
  };
  auto header_of = [](uint64_t sequence) {
    wire::FrameHeader header;
    header.kind = uint8_t(FrameKind::called);
    header.ordinal = uint32_t(SessionOrdinal::ping);
    header.sequence = sequence;
    return header;
  };
  ends_with("no frame where one should begin", [&](WireClient& client) {
    wire::FrameHeader header = header_of(1);
    header.magic = 0x1234;
    client.send_header(header);
  });
  ends_with("longer than the limit", [&](WireClient& client) {
    wire::FrameHeader header = header_of(1);
    header.message_words = 0xffff'ffff;
    client.send_header(header);
  });
  ends_with("longer than the limit", [&](WireClient& client) {
    wire::FrameHeader header = header_of(1);
    header.bulk_bytes = ~uint64_t(0);
    client.send_header(header);
  });
  ends_with("out of range", [&](WireClient& client) {
    wire::FrameHeader header = header_of(1);
    header.ordinal = 0x7fff'ffff;
    client.send_header(header);
  });
  ends_with("unknown call ordinal 999", [&](WireClient& client) { client.send_empty(FrameKind::called, 999); });
  ends_with("follows frame 0", [&](WireClient& client) { client.send_header(header_of(5)); });
  ends_with("may not be posted",
            [&](WireClient& client) { client.send_empty(FrameKind::posted, uint32_t(SessionOrdinal::ping)); });
  // The header suffices: the worker does not wait for the announced bulk.
  auto with_bulk = [&](uint32_t ordinal, uint64_t bytes) {
    return [&, ordinal, bytes](WireClient& client) {
      wire::FrameHeader header = header_of(1);
      header.ordinal = ordinal;
      header.bulk_bytes = bytes;
      client.send_header(header);
    };
  };
  constexpr uint32_t kDriverCall = 1100;  // protocol/api/: cuDeviceGetP2PAttribute takes no bulk, like all of them
  ends_with("ping (frame 1): bulk of 1 bytes, which it has no use for", with_bulk(uint32_t(SessionOrdinal::ping), 1));
  ends_with("bulk of 1 bytes, which it has no use for", with_bulk(kDriverCall, 1));
  ends_with(
      "managed_write (frame 1): bulk of 262145 bytes, where 262144 are the most",
      with_bulk(uint32_t(SessionOrdinal::managed_write), wire::bulk_bytes_max(SessionOrdinal::managed_write) + 1));
  ends_with("may not come from a client", [&](WireClient& client) {
    wire::FrameHeader header = header_of(1);
    header.kind = uint8_t(FrameKind::reply);
    client.send_header(header);
  });
  ends_with("source", [&](WireClient& client) {
    client.send_call<schema::Source>(FrameKind::called, uint32_t(SessionOrdinal::source), 0,
                                     [](schema::Source::Builder params) { params.setBytes(~uint64_t(0)); });
  });
  ends_with("bad message", [&](WireClient& client) {
    capnp::MallocMessageBuilder builder;
    builder.initRoot<schema::Source>().setBytes(1);
    auto segment = builder.getSegmentsForOutput()[0];
    const_cast<capnp::word*>(segment.begin())[0] =
        *reinterpret_cast<const capnp::word*>("\xff\xff\xff\x7f\xff\xff\xff\x7f");
    client.send_message(FrameKind::called, uint32_t(SessionOrdinal::source), 0, builder, {});
  });
}

TEST_CASE("handles that were never given out are CUDA errors, not the end of the session") {
  ServerProcess server(mock_arguments());
  WireClient client;
  REQUIRE(client.open_session(server.port()));
  constexpr uint32_t kForeignContext = 0x0100'0042;
  auto answer = client.reply(send_alloc(client, kForeignContext, 64));
  REQUIRE(answer);
  answer->with<schema::Result>(
      [](schema::Result::Reader result) { CHECK(result.getResult() == CUDA_ERROR_INVALID_CONTEXT); });
  CHECK(client.ping() == 0);
}

TEST_CASE("random bytes after the handshake end the session and nothing else") {
  constexpr uint32_t kSeed = 20'260'101;
  MESSAGE("seed ", kSeed);
  std::mt19937 random(kSeed);
  ServerProcess server(mock_arguments());
  WireClient bystander;
  REQUIRE(bystander.open_session(server.port()));
  for (int round = 0; round < 8; ++round) {
    WireClient client;
    REQUIRE(client.open_session(server.port()));
    std::vector<std::byte> noise(256);
    for (std::byte& byte : noise) byte = std::byte(random());
    client.send(noise);
    CHECK(client.closed_by_server());
  }
  CHECK(bystander.ping() == 0);
}

TEST_CASE("the processes of a client that is cut off in the middle of a copy go away") {
  ServerProcess server(mock_arguments());
  WireClient client;
  REQUIRE(client.open_session(server.port()));
  CHECK(client.ping() == 0);
  std::set<pid_t> before = server.workers();
  wire::FrameHeader header;
  header.kind = uint8_t(FrameKind::called);
  header.ordinal = uint32_t(SessionOrdinal::sink);
  header.sequence = 2;
  header.bulk_bytes = wire::kBulkBytesMax;
  client.send_header(header);
  client.send(std::vector<std::byte>(100'000));
  client.reset_connection();
  CHECK(eventually([&] { return server.log().find("the client closed the connection") != std::string::npos; }));
  CHECK(eventually([&] { return server.workers() != before; }));
  WireClient next;
  CHECK(next.open_session(server.port()));
}

TEST_CASE("a worker stuck in a driver call that never returns goes with its client") {
  ServerProcess server(mock_arguments({"--prewarmed-workers", "0"}));
  WireClient client;
  REQUIRE(client.open_session(server.port()));
  CHECK(client.ping() == 0);
  std::set<pid_t> stuck = server.workers();
  REQUIRE(stuck.size() == 1);
  uint32_t context = client.retain_primary();
  send_alloc(client, context, kAllocationThatHangs);
  client.close();
  CHECK(eventually([&] { return all_gone(stuck); }));
}

TEST_CASE("a worker stuck in a driver call goes with its client, however much of what that has sent nobody has read") {
  ServerProcess server(mock_arguments({"--prewarmed-workers", "0"}));
  WireClient client;
  REQUIRE(client.open_session(server.port()));
  CHECK(client.ping() == 0);
  std::set<pid_t> stuck = server.workers();
  REQUIRE(stuck.size() == 1);
  send_alloc(client, client.retain_primary(), kAllocationThatHangs);
  wire::FrameHeader header;
  header.kind = uint8_t(FrameKind::called);
  header.ordinal = uint32_t(SessionOrdinal::sink);
  header.sequence = 4;
  header.bulk_bytes = wire::kBulkBytesMax;
  client.send_header(header);
  fill(client.socket());
  CHECK_FALSE(all_gone(stuck));
  // Closes like the client's system after a kill; a reset would discard earlier data.
  ::shutdown(client.socket(), SHUT_WR);
  CHECK(eventually([&] { return all_gone(stuck); }));
}

TEST_CASE("a worker that crashes ends its own session alone") {
  ServerProcess server(mock_arguments());
  WireClient bystander, client;
  REQUIRE(bystander.open_session(server.port()));
  REQUIRE(client.open_session(server.port()));
  send_alloc(client, client.retain_primary(), kAllocationThatCrashes);
  CHECK(client.closed_by_server());
  CHECK(server.log_gets("signal 6"));
  CHECK(bystander.ping() == 0);
  WireClient next;
  CHECK(next.open_session(server.port()));
}

TEST_CASE("when the server is killed, its sessions end with a reason and no process stays") {
  ServerProcess server(mock_arguments());
  WireClient client;
  REQUIRE(client.open_session(server.port()));
  CHECK(client.ping() == 0);
  // The session's worker and the next prewarmed worker.
  REQUIRE(eventually([&] { return server.workers().size() == 2; }));
  std::set<pid_t> workers = server.workers();
  server.signal(SIGKILL);
  CHECK(client.reason_of_end() == "the server has gone");
  CHECK(eventually([&] { return all_gone(workers); }));
  CHECK(server.wait() == -SIGKILL);
}

TEST_CASE(
    "after SIGTERM running sessions go on, new ones are not accepted, and the server ends with the last session") {
  ServerProcess server(mock_arguments());
  uint16_t port = server.port();
  WireClient client;
  REQUIRE(client.open_session(port));
  server.signal(SIGTERM);
  REQUIRE(server.log_gets("shutting down"));
  CHECK(client.ping() == 0);
  WireClient late;
  CHECK(!late.connect(port));
  client.close();
  CHECK(server.wait() == 0);
}

TEST_CASE("a second SIGTERM ends the sessions at once, and they are told why") {
  ServerProcess server(mock_arguments());
  WireClient client;
  REQUIRE(client.open_session(server.port()));
  server.signal(SIGTERM);
  REQUIRE(server.log_gets("shutting down"));
  server.signal(SIGTERM);
  CHECK(client.reason_of_end() == "the server is shutting down");
  CHECK(server.wait() == 0);
}

TEST_CASE("one session more than allowed waits until another has ended") {
  ServerProcess server(mock_arguments({"--max-sessions", "1"}));
  WireClient first, second;
  REQUIRE(first.open_session(server.port()));
  REQUIRE(second.connect(server.port()));
  std::string text;
  REQUIRE(second.ask(text));
  CHECK(second.answer(text) == "queued");
  CHECK(first.ping() == 0);
  first.close();
  std::string said = second.answer(text);
  while (said == "queued") said = second.answer(text);
  CHECK(said == "admitted");
}
