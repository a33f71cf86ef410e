#include "server/chunk_store/chunk_store.hpp"

#include <atomic>

#include "test/server/chunk_store/chunk_files.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using namespace gpuwire::test;

namespace {

// `bytes_max`: the bound of the account.
struct Account final : HostMemory {
  explicit Account(uint64_t bytes_max) : bytes_max(bytes_max) {}
  bool reserve(uint64_t bytes) override {
    if (used + bytes > bytes_max) return false;
    used += bytes;
    return true;
  }
  void give_back(uint64_t bytes) override { used -= bytes; }
  std::atomic<uint64_t> used{0};
  const uint64_t bytes_max;
};

struct Store {
  ChunkFileMemory memory{64}, disk{64};
  std::atomic<uint64_t> chunks_found{0}, bytes_found{0}, bytes_kept{0};

  std::unique_ptr<ChunkStore> open(HostMemory* account = nullptr, uint64_t uncharged_bytes = 0) {
    std::vector<ChunkFile> files;
    files.push_back(memory.open());
    files.push_back(disk.open());
    return std::make_unique<ChunkStore>(
        std::move(files), account, uncharged_bytes,
        ChunkStore::Counters{
            .found = [this](uint64_t chunks, uint64_t bytes) { chunks_found += chunks, bytes_found += bytes; },
            .kept = [this](uint64_t bytes) { bytes_kept += bytes; }});
  }
};

std::vector<digest::Digest> digests_of(std::span<const std::byte> bytes, const digest::Key* key = nullptr) {
  std::vector<digest::Digest> all;
  for (size_t at = 0; at < bytes.size(); at += wire::kChunkBytes)
    all.push_back(digest::blake3(bytes.subspan(at, std::min(wire::kChunkBytes, bytes.size() - at)), key));
  return all;
}

void keep_all(Store& of, ChunkStore& store, std::span<const std::byte> bytes) {
  uint64_t before = of.bytes_kept;
  store.keep(bytes);
  while (of.bytes_kept - before < bytes.size()) std::this_thread::yield();
}

constexpr size_t kBytes = 3 * wire::kChunkBytes + 77;

}  // namespace

TEST_CASE("Chunks of one session are found by another of the tenant, one by one") {
  Store of;
  std::vector<std::byte> bytes = chunk_of(1, kBytes), out(kBytes);
  keep_all(of, *of.open(), bytes);
  auto store = of.open();
  std::vector<digest::Digest> digests = digests_of(bytes);
  digests[1] = digest::blake3(chunk_of(2));
  CHECK(store->fetch(digests, out) == std::vector<bool>{true, false, true, true});
  CHECK(std::equal(bytes.begin(), bytes.begin() + wire::kChunkBytes, out.begin()));
  CHECK(std::equal(bytes.begin() + 2 * wire::kChunkBytes, bytes.end(), out.begin() + 2 * wire::kChunkBytes));
  CHECK(of.chunks_found == 3);
  CHECK(of.bytes_found == kBytes - wire::kChunkBytes);
}

TEST_CASE("A chunk that is not what it is said to be is not found, on no medium, and is kept anew") {
  Store of;
  std::vector<std::byte> bytes = chunk_of(1, kBytes), out(kBytes);
  std::vector<digest::Digest> digests = digests_of(bytes);
  // A compromised worker has stored other bytes under these digests.
  for (const ChunkFileMemory* medium : {&of.memory, &of.disk}) REQUIRE(medium->open().write(digests[0], chunk_of(9)));
  auto store = of.open();
  CHECK(store->holds(digests[0]));
  CHECK(store->fetch(digests, out) == std::vector<bool>(4, false));
  CHECK_FALSE(store->holds(digests[0]));
  keep_all(of, *store, bytes);
  CHECK(store->fetch(digests, out) == std::vector<bool>(4, true));
  CHECK(out == bytes);
}

TEST_CASE("A chunk that is damaged in memory is read from the disk, and put into memory again") {
  Store of;
  std::vector<std::byte> bytes = chunk_of(1), out(bytes.size());
  std::vector<digest::Digest> digests = digests_of(bytes);
  auto store = of.open();
  keep_all(of, *store, bytes);
  of.memory.open().forget(digests[0]);
  REQUIRE(of.memory.open().write(digests[0], chunk_of(9)));
  CHECK(store->fetch(digests, out) == std::vector<bool>{true});
  CHECK(out == bytes);
  std::vector<std::byte> again(bytes.size());
  REQUIRE(of.memory.open().read(digests[0], again));
  CHECK(again == bytes);
}

TEST_CASE("Under another key nothing is found that was kept under the first, and the other way round") {
  Store of;
  digest::Key anna{1}, ben{2};
  std::vector<std::byte> bytes = chunk_of(1), out(bytes.size());
  auto annas = of.open(), bens = of.open();
  annas->use_key(anna);
  bens->use_key(ben);
  keep_all(of, *annas, bytes);
  CHECK(annas->fetch(digests_of(bytes, &anna), out) == std::vector<bool>{true});
  CHECK(bens->fetch(digests_of(bytes, &ben), out) == std::vector<bool>{false});
  // A tenant that learns a digest does not get the bytes.
  std::fill(out.begin(), out.end(), std::byte{});
  CHECK(bens->fetch(digests_of(bytes, &anna), out) == std::vector<bool>{false});
}

TEST_CASE("A session without host memory stores nothing, and the session that fills a store is charged for it") {
  Store of;
  Account none(wire::kChunkBytes - 1), small(10 * wire::kChunkBytes);
  std::vector<std::byte> bytes = chunk_of(1);
  auto refused = of.open(&none);
  refused->keep(bytes);
  refused->finish();
  CHECK(of.bytes_kept == 0);
  auto too_much = of.open(&small, 10 * wire::kChunkBytes + 1);
  too_much->keep(bytes);
  too_much->finish();
  CHECK(of.bytes_kept == 0);
  CHECK(small.used == 0);
  auto store = of.open(&small, 9 * wire::kChunkBytes);
  keep_all(of, *store, bytes);
  CHECK(small.used == 10 * wire::kChunkBytes);
  keep_all(of, *store, bytes);  // the queue's memory is reused
  CHECK(small.used == 10 * wire::kChunkBytes);
  store.reset();
  CHECK(small.used == 0);
}
