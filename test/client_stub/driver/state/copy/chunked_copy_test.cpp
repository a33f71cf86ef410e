#include "client_stub/driver/state/copy/chunked_copy.hpp"
#include "client_stub/driver/state/copy/chunked_uploads.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "schema/session.capnp.h"
#include "test/client_stub/driver/state/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

using test::SentFrame;
using wire::SessionOrdinal;

constexpr uint64_t kBase = 0x7000'0000'0000;
constexpr size_t kBytes = (3u << 20) + 5;
constexpr size_t kChunks = kBytes / wire::kChunkBytes + 1;

std::vector<std::byte> random_bytes(size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(count);
  for (auto& byte : out) byte = std::byte(random());
  return out;
}

// A server with a chunk store, and its device's memory at kBase.
struct KeepingServer : test::DeviceProcess {
  explicit KeepingServer(const char* wish, bool same_machine = false)
      : DeviceProcess((setenv("GPUWIRE_DEDUP", wish, 1), 1)), memory(256u << 20) {
    unsetenv("GPUWIRE_DEDUP");
    address_map().insert({.base = kBase, .bytes = memory.size(), .kind = RangeKind::device});
    ServerFacts facts = session->facts();
    facts.chunks = ServerFacts::Chunks::plain;
    facts.same_machine = same_machine;
    test::part<client::ChunkedUploads>().begin(facts);
    session->serve(uint32_t(SessionOrdinal::copy_to_device),
                   [this](const SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
                     reply.initRoot<schema::Result>();
                     frame.read<schema::CopyToDevice>([&](auto copy) {
                       std::memcpy(&memory[copy.getDestination() - kBase], frame.bulk.data(), frame.bulk.size());
                       kept += copy.getKeep() ? frame.bulk.size() : 0;
                     });
                     sent += frame.bulk.size();
                   });
    session->serve(uint32_t(SessionOrdinal::copy_chunks),
                   [this](const SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
                     frame.read<schema::CopyChunks>([&](auto copy) { answer(copy, reply); });
                   });
  }
  void answer(schema::CopyChunks::Reader copy, capnp::MessageBuilder& reply) {
    auto result = reply.initRoot<schema::ChunksReply>();
    const size_t count = copy.getDigests().size() / digest::kDigestBytes;
    REQUIRE(count == (copy.getBytes() + wire::kChunkBytes - 1) / wire::kChunkBytes);
    auto missing = result.initMissing(unsigned((count + 7) / 8));
    for (size_t i = 0; i < count; ++i) {
      digest::Digest digest;
      std::memcpy(digest.data(), copy.getDigests().begin() + i * digest.size(), digest.size());
      auto found = chunks.find(digest);
      if (found == chunks.end()) {
        missing[i / 8] = uint8_t(missing[i / 8] | 1u << (i % 8));
      } else {
        std::memcpy(&memory[copy.getDestination() - kBase + i * wire::kChunkBytes], found->second.data(),
                    found->second.size());
      }
    }
    ++asked;
  }
  void keep(std::span<const std::byte> bytes, const std::set<size_t>& but = {}) {
    for (size_t at = 0, i = 0; at < bytes.size(); at += wire::kChunkBytes, ++i) {
      auto chunk = bytes.subspan(at, std::min(wire::kChunkBytes, bytes.size() - at));
      if (!but.contains(i)) chunks[digest::blake3(chunk)] = {chunk.begin(), chunk.end()};
    }
  }
  bool has(std::span<const std::byte> bytes) const {
    return std::memcmp(memory.data(), bytes.data(), bytes.size()) == 0;
  }
  CUresult copy(std::span<const std::byte> bytes) {
    return custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false);
  }

  std::vector<std::byte> memory;
  std::map<digest::Digest, std::vector<std::byte>> chunks;
  size_t asked = 0, sent = 0, kept = 0;
};

}  // namespace

TEST_CASE("A large copy sends only the chunks that the server does not have, wherever they are") {
  auto bytes = random_bytes(kBytes, 1);
  const std::set<size_t> cases[] = {{}, {0}, {kChunks - 1}, {1, 2, 7}, {0, 2, 4, 6, 8, 10, 12}};
  for (const std::set<size_t>& missing : cases) {
    CAPTURE(missing.size());
    KeepingServer server("on");
    server.keep(bytes, missing);
    REQUIRE(server.copy(bytes) == CUDA_SUCCESS);
    CHECK(server.has(bytes));
    size_t expected = 0;
    for (size_t chunk : missing) expected += std::min(wire::kChunkBytes, kBytes - chunk * wire::kChunkBytes);
    CHECK(server.sent == expected);
    CHECK(server.kept == expected);
  }
}

TEST_CASE("A server that has nothing gets all of it, and is told to keep it") {
  auto bytes = random_bytes(40u << 20, 2);
  KeepingServer server("on");
  REQUIRE(server.copy(bytes) == CUDA_SUCCESS);
  CHECK(server.has(bytes));
  CHECK(server.sent == bytes.size());
  CHECK(server.kept == bytes.size());
}

TEST_CASE("The copy is there when it has returned: what comes last waits for the device") {
  auto bytes = random_bytes(kBytes, 3);
  KeepingServer server("on");
  server.keep(bytes, {2});
  REQUIRE(server.copy(bytes) == CUDA_SUCCESS);
  bool named_waits = false, sent_waits = false;
  for (const SentFrame& frame : server.session->frames()) {
    if (frame.ordinal == uint32_t(SessionOrdinal::copy_chunks))
      frame.read<schema::CopyChunks>([&](auto copy) { named_waits = copy.getBlocking(); });
    if (frame.ordinal == uint32_t(SessionOrdinal::copy_to_device))
      frame.read<schema::CopyToDevice>([&](auto copy) { sent_waits = copy.getBlocking(); });
  }
  CHECK(named_waits);
  CHECK(sent_waits);
}

TEST_CASE("A copy is named in pieces that begin and end short, and each leaves at once") {
  constexpr size_t kRound = 8 * wire::kChunkBytes;
  for (size_t size : {size_t(16) << 20, (size_t(100) << 20) + 77}) {
    CAPTURE(size);
    auto bytes = random_bytes(size, 7);
    KeepingServer server("on");
    server.keep(bytes);
    REQUIRE(server.copy(bytes) == CUDA_SUCCESS);
    CHECK(server.session->flushes == server.session->count(uint32_t(SessionOrdinal::copy_chunks)));
    std::vector<size_t> pieces;
    for (const SentFrame& frame : server.session->frames())
      if (frame.ordinal == uint32_t(SessionOrdinal::copy_chunks))
        frame.read<schema::CopyChunks>([&](auto copy) { pieces.push_back(copy.getBytes()); });
    CHECK(std::accumulate(pieces.begin(), pieces.end(), size_t(0)) == size);
    CHECK(pieces.front() == kRound);
    CHECK(pieces.back() <= kRound);
    CHECK(std::all_of(pieces.begin(), pieces.end() - 1, [](size_t piece) { return piece % kRound == 0; }));
    CHECK(pieces.size() < 16);
  }
}

TEST_CASE("Switched off, or on the server's own machine, no copy is named and nothing is kept") {
  auto bytes = random_bytes(kBytes, 4);
  for (bool same_machine : {false, true}) {
    KeepingServer server(same_machine ? "auto" : "off", same_machine);
    server.keep(bytes);
    REQUIRE(server.copy(bytes) == CUDA_SUCCESS);
    CHECK(server.asked == 0);
    size_t sent = 0, to_keep = 0;
    for (const SentFrame& frame : server.session->frames()) {
      if (frame.ordinal != uint32_t(SessionOrdinal::copy_to_device)) continue;
      sent += frame.bulk.size();
      frame.read<schema::CopyToDevice>([&](auto copy) { to_keep += copy.getKeep(); });
    }
    CHECK(sent == kBytes);
    CHECK(to_keep == 0);
    CHECK(server.session->count(uint32_t(SessionOrdinal::find_chunk)) == 0);
  }
}

TEST_CASE("Left to itself a session names bytes only once the link has been measured to be slower than digesting") {
  using std::chrono::hours;
  using std::chrono::nanoseconds;
  auto bytes = random_bytes(kBytes, 5);
  KeepingServer server("auto");
  server.keep(bytes);
  ChunkedUploads& uploads = test::part<client::ChunkedUploads>();
  CHECK(uploads.rate_wanted());
  CHECK_FALSE(uploads.asks());
  uploads.measured(kBytes, nanoseconds(1), bytes);  // petabytes a second
  CHECK_FALSE(uploads.keeps());
  REQUIRE(server.copy(bytes) == CUDA_SUCCESS);
  CHECK(server.asked == 0);
  for (int times = 0; times < 64; ++times) uploads.measured(1, hours(1), bytes);
  CHECK(uploads.asks());
  REQUIRE(server.copy(bytes) == CUDA_SUCCESS);
  CHECK(server.asked > 0);
  CHECK(server.has(bytes));
  CHECK(server.kept == 0);
}

TEST_CASE("Where nothing is found a session stops naming bytes, and goes on with it when a probe finds something") {
  auto bytes = random_bytes(40u << 20, 6);
  KeepingServer server("auto");
  ChunkedUploads& uploads = test::part<client::ChunkedUploads>();
  uploads.measured(1, std::chrono::hours(1), bytes);
  REQUIRE(uploads.asks());
  REQUIRE(server.copy(bytes) == CUDA_SUCCESS);
  CHECK(server.has(bytes));
  CHECK(server.kept == bytes.size());
  CHECK_FALSE(uploads.asks());
  CHECK(uploads.keeps());
  // One query for a chunk precedes the bytes that are sent from then on, and none follows before its answer.
  size_t asked = server.asked;
  REQUIRE(server.copy(bytes) == CUDA_SUCCESS);
  CHECK(server.asked == asked);
  CHECK(server.kept == 2 * bytes.size());
  REQUIRE(server.session->count(uint32_t(SessionOrdinal::find_chunk)) == 1);
  uint64_t probe = 0;
  for (const SentFrame& frame : server.session->frames()) {
    if (frame.ordinal == uint32_t(SessionOrdinal::find_chunk)) probe = frame.sequence;
  }
  uploads.found(probe + 1, true);  // another query's answer
  CHECK_FALSE(uploads.asks());
  uploads.found(probe, true);
  CHECK(uploads.asks());
}

TEST_CASE("Where naming turns out to be slower than sending it is given up") {
  auto bytes = random_bytes(kBytes, 7);
  KeepingServer server("auto");
  ChunkedUploads& uploads = test::part<client::ChunkedUploads>();
  uploads.measured(1u << 20, std::chrono::seconds(1), bytes);  // 1 MiB a second
  REQUIRE(uploads.asks());
  uploads.named(1u << 19, std::chrono::seconds(1));
  CHECK_FALSE(uploads.asks());
  CHECK_FALSE(uploads.keeps());
}

TEST_CASE("A copy that fails on the server ends with its error, and waits for all that was sent") {
  auto bytes = random_bytes(kBytes, 8);
  KeepingServer server("on");
  server.session->serve(uint32_t(SessionOrdinal::copy_chunks),
                        [](const SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
                          reply.initRoot<schema::ChunksReply>().setResult(CUDA_ERROR_OUT_OF_MEMORY);
                        });
  CHECK(server.copy(bytes) == CUDA_ERROR_OUT_OF_MEMORY);
}

}  // namespace gpuwire::client
