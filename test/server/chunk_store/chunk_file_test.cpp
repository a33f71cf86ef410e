#include "test/server/chunk_store/chunk_files.hpp"

#include <random>

using namespace gpuwire;
using namespace gpuwire::server;
using namespace gpuwire::test;

namespace {

constexpr size_t kSmall = 100;  // bytes: enough for the tests of order

digest::Digest digest_of(unsigned seed, size_t bytes = kSmall) { return digest::blake3(chunk_of(seed, bytes)); }

}  // namespace

TEST_CASE("A chunk that was written is read again, and no other") {
  ChunkFileMemory memory(16);
  ChunkFile file = memory.open();
  std::vector<std::byte> chunk = chunk_of(1), out(chunk.size());
  CHECK_FALSE(file.read(digest_of(1, chunk.size()), out));
  REQUIRE(file.write(digest_of(1, chunk.size()), chunk));
  CHECK(file.holds(digest_of(1, chunk.size())));
  REQUIRE(memory.open().read(digest_of(1, chunk.size()), out));
  CHECK(out == chunk);
  CHECK_FALSE(file.holds(digest_of(2)));
  // The same digest with another length is another chunk.
  std::vector<std::byte> shorter(chunk.size() - 1);
  CHECK_FALSE(file.read(digest_of(1, chunk.size()), shorter));
  file.forget(digest_of(1, chunk.size()));
  CHECK_FALSE(file.holds(digest_of(1, chunk.size())));
}

TEST_CASE("The least recently used chunk of a full set makes room") {
  ChunkFileMemory memory(ChunkFile::kSlotsPerSet);
  ChunkFile file = memory.open();
  // The clock of uses has a resolution of some milliseconds, so the test writes entries with its own times.
  for (unsigned seed = 0; seed < ChunkFile::kSlotsPerSet; ++seed) {
    ChunkFile::Entry entry{.digest = digest_of(seed), .bytes = kSmall, .used_ns = 1000 + (seed == 5 ? 0 : seed + 1)};
    REQUIRE(::pwrite(memory.descriptor.get(), &entry, sizeof entry, off_t(seed * sizeof entry)) == sizeof entry);
  }
  REQUIRE(file.write(digest_of(100), chunk_of(100, kSmall)));
  CHECK_FALSE(file.holds(digest_of(5)));
  std::vector<std::byte> out(kSmall);
  REQUIRE(file.read(digest_of(0), out));  // now it is the newest
  REQUIRE(file.write(digest_of(101), chunk_of(101, kSmall)));
  CHECK(file.holds(digest_of(0)));
  CHECK_FALSE(file.holds(digest_of(1)));
}

TEST_CASE("A file of so many bytes at most is no longer than that, and one too short is refused") {
  for (uint64_t bytes : {uint64_t{5} << 20, uint64_t{64} << 20, (uint64_t{1} << 40) + 12345}) {
    size_t slots = ChunkFile::slots_of(bytes);
    CHECK(slots > 0);
    CHECK(ChunkFile::file_bytes(slots) <= bytes);
    CHECK(ChunkFile::slots_of(ChunkFile::file_bytes(slots)) == slots);
  }
  CHECK(ChunkFile::slots_of(1 << 20) == 0);
  OwnedDescriptor empty(::memfd_create("chunks", MFD_CLOEXEC));
  CHECK_FALSE(ChunkFile::open(std::move(empty)).has_value());
}

TEST_CASE("Reading stays within the file and within the request, whatever another worker has written into the file") {
  const unsigned seed = 17;
  std::mt19937_64 random(seed);
  ChunkFileMemory memory(32);
  ChunkFile file = memory.open();
  std::vector<std::byte> out(kSmall);
  for (int round = 0; round < 2000; ++round) {
    ChunkFile::Entry entry;
    entry.digest = digest_of(unsigned(random() % 4));
    entry.bytes = uint32_t(random() % 3 ? random() : kSmall);
    entry.reserved = uint32_t(random());
    entry.used_ns = random();
    off_t at = off_t(random() % 32 * sizeof entry + (random() % 2 ? random() % sizeof entry : 0));
    REQUIRE(::pwrite(memory.descriptor.get(), &entry, sizeof entry, at) == sizeof entry);
    file.read(digest_of(unsigned(random() % 4)), out);
    file.write(digest_of(unsigned(random() % 8)), chunk_of(3, kSmall));
    file.forget(digest_of(unsigned(random() % 4)));
  }
  CHECK(::lseek(memory.descriptor.get(), 0, SEEK_END) == off_t(ChunkFile::file_bytes(32)));
}
