#include <doctest/doctest.h>

#include <cstring>
#include <thread>

#include "server/chunk_store/chunk_store.hpp"
#include "server/replay/copy/copy.hpp"
#include "test/server/chunk_store/chunk_files.hpp"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::SessionOrdinal;

namespace {

constexpr size_t kBytes = 5 * wire::kChunkBytes + 99;

struct Fixture {
  ChunkFileMemory memory{64};
  std::atomic<uint64_t> kept{0};
  server::ChunkStore store{files(), nullptr, 0, {.kept = [this](uint64_t bytes) { kept += bytes; }}};
  FakeDriver driver;
  FakeSession session{driver, {.chunks = &store}};
  std::vector<std::byte> device = std::vector<std::byte>(kBytes), bytes = chunk_of(1, kBytes);

  Fixture() { session.enter_primary(); }
  std::vector<server::ChunkFile> files() const {
    std::vector<server::ChunkFile> all;
    all.push_back(memory.open());
    return all;
  }
  uint64_t upload(bool keep) {
    return session.call<schema::CopyToDevice>(
        SessionOrdinal::copy_to_device,
        [&](schema::CopyToDevice::Builder params) {
          params.setDestination(reinterpret_cast<uint64_t>(device.data()));
          params.setKeep(keep);
        },
        bytes);
  }
  void upload_and_keep() {
    upload(true);
    while (kept < kBytes) std::this_thread::yield();
    std::fill(device.begin(), device.end(), std::byte{});
  }
  uint64_t name(const std::vector<std::byte>& what, bool blocking = true, uint64_t claimed_bytes = kBytes) {
    return session.call<schema::CopyChunks>(SessionOrdinal::copy_chunks, [&](schema::CopyChunks::Builder params) {
      params.setDestination(reinterpret_cast<uint64_t>(device.data()));
      params.setBlocking(blocking);
      params.setBytes(claimed_bytes);
      size_t count = (what.size() + wire::kChunkBytes - 1) / wire::kChunkBytes;
      auto digests = params.initDigests(unsigned(count * digest::kDigestBytes));
      for (size_t i = 0; i < count; ++i) {
        size_t at = i * wire::kChunkBytes;
        auto digest = digest::blake3(std::span(what).subspan(at, std::min(wire::kChunkBytes, what.size() - at)));
        std::memcpy(digests.begin() + i * digest.size(), digest.data(), digest.size());
      }
    });
  }
  uint8_t missing(uint64_t call) {
    const Sent* reply = session.reply(call);
    REQUIRE(reply);
    auto read = reply->as<schema::ChunksReply>();
    CHECK(read.getResult() == CUDA_SUCCESS);
    REQUIRE(read.getMissing().size() == 1);
    return read.getMissing()[0];
  }
};

}  // namespace

TEST_CASE("Chunks of a copy that was to be kept are copied by their digests, the others are said to be missing") {
  Fixture fixture;
  fixture.upload_and_keep();
  std::vector<std::byte> changed = fixture.bytes;
  changed[2 * wire::kChunkBytes + 5] ^= std::byte{1};
  changed.back() ^= std::byte{1};
  CHECK(fixture.missing(fixture.name(changed)) == (1u << 2 | 1u << 5));
  for (size_t chunk = 0; chunk < 5; ++chunk) {
    auto at = fixture.device.begin() + chunk * wire::kChunkBytes;
    auto from = fixture.bytes.begin() + chunk * wire::kChunkBytes;
    CHECK(std::equal(at, at + 64, from) == (chunk != 2));
  }
  CHECK(fixture.missing(fixture.name(fixture.bytes, false)) == 0);
}

TEST_CASE("A chunk that was not to be stored is not stored, and without a store all are missing") {
  Fixture fixture;
  fixture.upload(false);
  fixture.store.finish();
  CHECK(fixture.kept == 0);
  CHECK(fixture.missing(fixture.name(fixture.bytes)) == 0x3f);
  FakeSession without(fixture.driver);
  without.enter_primary();
  CHECK(without.state().chunks() == nullptr);
}

TEST_CASE("Names that are not those of so many bytes end the session") {
  Fixture fixture;
  for (uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, kBytes + wire::kChunkBytes, wire::kChunkCopyBytesMax + 1, ~uint64_t{0}})
    CHECK_THROWS_AS(fixture.name(fixture.bytes, true, bytes), server::ProtocolFault);
}

TEST_CASE("A question for a chunk is answered by a notice that names it") {
  Fixture fixture;
  fixture.upload_and_keep();
  auto ask = [&](std::span<const uint8_t> digest) {
    uint64_t sequence =
        fixture.session.post<schema::FindChunk>(SessionOrdinal::find_chunk, [&](schema::FindChunk::Builder params) {
          params.setDigest(kj::ArrayPtr<const kj::byte>(digest.data(), digest.size()));
        });
    auto found = fixture.session.sent().back().as<schema::ChunkFound>();
    CHECK(found.getSequence() == sequence);
    return found.getFound();
  };
  auto first = digest::blake3(std::span(fixture.bytes).first(wire::kChunkBytes));
  CHECK(ask(first));
  first[0] ^= 1;
  CHECK_FALSE(ask(first));
  CHECK_FALSE(ask({}));
  CHECK_THROWS_AS(ask(std::span(first).first(31)), server::ProtocolFault);
}
