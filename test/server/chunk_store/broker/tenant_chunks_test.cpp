// The broker makes the tenants' chunk stores, charges them, and finds them again.
#include "server/chunk_store/broker/tenant_chunks.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/chunk_store/chunk_file.hpp"
#include "test/server/broker/keeper/kept_entries.hpp"
#include "test/support/temporary_directory.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kMiB = 1u << 20;

TenantConfiguration tenant(const std::string& name, uint64_t memory_bytes, uint64_t disk_bytes = 0) {
  TenantConfiguration settings{.name = name};
  settings.dedup_memory_bytes = memory_bytes;
  settings.dedup_disk_bytes = disk_bytes;
  return settings;
}

// Returns the real size of a store with this bound.
uint64_t whole(uint64_t bytes_max) { return ChunkFile::file_bytes(ChunkFile::slots_of(bytes_max)); }

struct Session {
  SessionRecord record;
  SessionSpec spec;
  ipc::SessionDescriptors descriptors;

  // Writes like a worker that stores a chunk.
  void fill() const {
    const char byte = 1;
    REQUIRE(::pwrite(descriptors.chunk_memory.get(), &byte, 1, 0) == 1);
  }
};

struct Broker {
  TenantDirectory tenants;
  std::map<std::string, uint64_t> charged;
  TenantChunks chunks;

  Broker(const std::filesystem::path& directory, test::KeptEntries& keeper, std::vector<TenantConfiguration> configured)
      : tenants(std::move(configured)),
        chunks({.directory = directory, .keeping = &keeper, .host_bytes = 0, .charge = [this](auto id, uint64_t bytes) {
                  charged[tenants.find(id)->settings.name] = bytes;
                }}) {}

  // Starts like a broker, without and with entries of an earlier one.
  void start() { chunks.tenants_changed(tenants); }
  void start_after(const test::KeptEntries& keeper) {
    auto entries = keeper.all();
    chunks.restore(entries, tenants);
    chunks.tenants_changed(tenants);
  }
  void reload(std::vector<TenantConfiguration> configured) {
    tenants.replace(std::move(configured));
    chunks.tenants_changed(tenants);
  }
  SessionRecord record(const std::string& name, uint64_t number) const {
    SessionRecord record;
    record.number = scheduler::SessionId(number);
    record.tenant = name;
    record.tenant_id = tenants.find(name)->id;
    return record;
  }
  Session begin(const std::string& name, uint64_t number) {
    Session session;
    session.record = record(name, number);
    REQUIRE(chunks.attach(session.record, session.spec, session.descriptors));
    return session;
  }
  void end(const Session& session) { chunks.ended(session.record); }
};

bool same_file(const OwnedDescriptor& one, const OwnedDescriptor& other) {
  struct stat first {
  }, second{};
  return ::fstat(one.get(), &first) == 0 && ::fstat(other.get(), &second) == 0 && first.st_ino == second.st_ino &&
         first.st_dev == second.st_dev;
}

size_t files_in(const std::filesystem::path& directory) {
  std::error_code none;
  std::filesystem::directory_iterator files(directory, none);
  return none ? 0 : size_t(std::distance(begin(files), end(files)));
}

struct Fixture {
  test::TemporaryDirectory folder;
  std::filesystem::path directory = folder.path() / "chunks";
  test::KeptEntries keeper;
};

TEST_CASE_FIXTURE(Fixture, "a store is charged once it holds something, and until then its worker answers for it") {
  Broker broker(directory, keeper, {tenant("anna", 64 * kMiB), tenant("ben", 64 * kMiB)});
  broker.start();
  Session first = broker.begin("anna", 1);
  CHECK_FALSE(first.spec.chunks_charged);
  CHECK(broker.charged.empty());
  first.fill();
  broker.end(first);
  CHECK(broker.charged == std::map<std::string, uint64_t>{{"anna", whole(64 * kMiB)}});
  CHECK(broker.begin("anna", 2).spec.chunks_charged);
}

TEST_CASE_FIXTURE(Fixture, "sessions of one tenant have one store, and another tenant's has nothing of it") {
  Broker broker(directory, keeper, {tenant("anna", 64 * kMiB, 64 * kMiB), tenant("ben", 64 * kMiB, 64 * kMiB)});
  broker.start();
  Session one = broker.begin("anna", 1), two = broker.begin("anna", 2), other = broker.begin("ben", 3);
  CHECK(same_file(one.descriptors.chunk_memory, two.descriptors.chunk_memory));
  CHECK(same_file(one.descriptors.chunk_disk, two.descriptors.chunk_disk));
  CHECK_FALSE(same_file(one.descriptors.chunk_memory, other.descriptors.chunk_memory));
  CHECK_FALSE(same_file(one.descriptors.chunk_disk, other.descriptors.chunk_disk));
}

TEST_CASE_FIXTURE(Fixture, "a store without a bound that holds a chunk is none") {
  Broker broker(directory, keeper, {tenant("anna", 1)});
  broker.start();
  Session session = broker.begin("anna", 1);
  CHECK_FALSE(session.descriptors.chunk_memory);
  CHECK_FALSE(session.descriptors.chunk_disk);
  CHECK(keeper.entries.empty());
}

TEST_CASE_FIXTURE(Fixture, "the next broker finds the store in memory and charges it") {
  Broker before(directory, keeper, {tenant("anna", 64 * kMiB)});
  before.start();
  Session session = before.begin("anna", 1);
  session.fill();
  Broker after(directory, keeper, {tenant("anna", 64 * kMiB)});
  after.start_after(keeper);
  KeptEntry none;
  REQUIRE(after.chunks.adopt(session.record, {}, none));
  after.chunks.all_adopted();
  CHECK(after.charged["anna"] == whole(64 * kMiB));
  CHECK(same_file(session.descriptors.chunk_memory, after.begin("anna", 2).descriptors.chunk_memory));
  after.end(session);
  CHECK(after.charged["anna"] == whole(64 * kMiB));
}

TEST_CASE_FIXTURE(Fixture, "memory of a bound that has changed is charged for as long as a session has it") {
  Broker broker(directory, keeper, {tenant("anna", 64 * kMiB)});
  broker.start();
  Session first = broker.begin("anna", 1);
  first.fill();
  broker.end(first);
  Session second = broker.begin("anna", 2), third = broker.begin("anna", 3);
  broker.reload({tenant("anna", 32 * kMiB)});
  CHECK(broker.charged["anna"] == whole(64 * kMiB));
  Session fourth = broker.begin("anna", 4);
  CHECK_FALSE(same_file(second.descriptors.chunk_memory, fourth.descriptors.chunk_memory));
  CHECK_FALSE(fourth.spec.chunks_charged);
  fourth.fill();
  broker.end(second);
  CHECK(broker.charged["anna"] == whole(64 * kMiB) + whole(32 * kMiB));
  broker.end(third);
  CHECK(broker.charged["anna"] == whole(32 * kMiB));
  broker.end(fourth);
  CHECK(broker.charged["anna"] == whole(32 * kMiB));
}

TEST_CASE_FIXTURE(Fixture,
                  "a bound that changed while no broker ran leaves the old memory charged to its sessions' end") {
  Broker before(directory, keeper, {tenant("anna", 64 * kMiB)});
  before.start();
  Session session = before.begin("anna", 1);
  session.fill();
  Broker after(directory, keeper, {tenant("anna", 32 * kMiB)});
  after.start_after(keeper);
  CHECK(keeper.entries.empty());
  KeptEntry none;
  REQUIRE(after.chunks.adopt(session.record, {}, none));
  after.chunks.all_adopted();
  CHECK(after.charged["anna"] == whole(64 * kMiB));
  after.end(session);
  CHECK(after.charged["anna"] == 0);
}

TEST_CASE_FIXTURE(Fixture, "old memory whose sessions did not come back is charged to nobody") {
  Broker before(directory, keeper, {tenant("anna", 64 * kMiB)});
  before.start();
  before.begin("anna", 1).fill();
  Broker after(directory, keeper, {tenant("anna", 0)});
  after.start_after(keeper);
  after.chunks.all_adopted();
  CHECK(after.charged["anna"] == 0);
}

TEST_CASE_FIXTURE(Fixture, "the keeper holds nothing for tenants that are gone") {
  Broker before(directory, keeper, {tenant("anna", 64 * kMiB), tenant("ben", 64 * kMiB)});
  before.start();
  before.begin("anna", 1);
  before.begin("ben", 2);
  REQUIRE(keeper.entries.size() == 2);
  Broker after(directory, keeper, {tenant("anna", 64 * kMiB)});
  after.start_after(keeper);
  CHECK(keeper.entries.size() == 1);
  CHECK(keeper.entries.contains("chunks/anna"));
  after.reload({});
  CHECK(keeper.entries.empty());
}

TEST_CASE_FIXTURE(Fixture, "a store on disk outlives brokers, and not its bound") {
  Broker before(directory, keeper, {tenant("anna", 0, 64 * kMiB)});
  before.start();
  Session session = before.begin("anna", 1);
  Broker after(directory, keeper, {tenant("anna", 0, 64 * kMiB)});
  after.start();
  CHECK(same_file(session.descriptors.chunk_disk, after.begin("anna", 2).descriptors.chunk_disk));
  after.reload({tenant("anna", 0, 32 * kMiB)});
  CHECK_FALSE(same_file(session.descriptors.chunk_disk, after.begin("anna", 3).descriptors.chunk_disk));
  CHECK(files_in(directory) == 1);
  Broker without(directory, keeper, {tenant("anna", 0)});
  without.start();
  CHECK(files_in(directory) == 0);
}

TEST_CASE_FIXTURE(Fixture, "a file on disk that a worker has made longer is another's from then on") {
  Broker broker(directory, keeper, {tenant("anna", 0, 64 * kMiB)});
  broker.start();
  Session session = broker.begin("anna", 1);
  REQUIRE(::ftruncate(session.descriptors.chunk_disk.get(), off_t(128 * kMiB)) == 0);
  Session next = broker.begin("anna", 2);
  CHECK_FALSE(same_file(session.descriptors.chunk_disk, next.descriptors.chunk_disk));
}

TEST_CASE_FIXTURE(Fixture, "a worker cannot make the store in memory longer or shorter") {
  Broker broker(directory, keeper, {tenant("anna", 64 * kMiB)});
  broker.start();
  Session session = broker.begin("anna", 1);
  for (uint64_t bytes : {uint64_t(0), 128 * kMiB})
    CHECK(::ftruncate(session.descriptors.chunk_memory.get(), off_t(bytes)) != 0);
}

}  // namespace
}  // namespace gpuwire::server
