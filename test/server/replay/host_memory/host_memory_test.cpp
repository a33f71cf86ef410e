// What a session takes of the server's own memory is asked for before it is taken, refused by the call that asks, and
// given back.
#include <doctest/doctest.h>

#include <sys/mman.h>

#include "protocol/wire/limits.hpp"
#include "server/module_cache/digest.hpp"
#include "server/replay/copy/staging.hpp"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::HandleKind;
using wire::SessionOrdinal;

namespace {

constexpr uint64_t kMiB = 1u << 20;

class Account final : public server::HostMemory {
 public:
  bool reserve(uint64_t bytes) override {
    if (bytes > limit - used) return false;
    used += bytes;
    return true;
  }
  void give_back(uint64_t bytes) override {
    REQUIRE(bytes <= used);
    used -= bytes;
  }
  uint64_t limit = 64 * kMiB, used = 0;
};

uint64_t free_address(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  munmap(memory, bytes);
  return reinterpret_cast<uint64_t>(memory);
}

struct Fixture {
  FakeDriver driver;
  Account account;
  FakeSession session{driver, {}, &account};
  uint64_t before = 0;

  Fixture() {
    session.enter_primary();
    before = account.used;
  }
  int offer(uint8_t image, uint64_t bytes) {
    uint64_t sequence =
        session.call<schema::ModuleOffer>(SessionOrdinal::module_offer, [&](schema::ModuleOffer::Builder params) {
          server::Digest digest{};
          digest[0] = image;
          params.setDigest(kj::arrayPtr(digest.data(), digest.size()));
          params.setBytes(bytes);
        });
    REQUIRE(session.reply(sequence));
    return session.reply(sequence)->as<schema::ModuleOfferReply>().getResult();
  }
  int create(SessionOrdinal what, uint64_t address, uint64_t bytes) {
    return session.result(session.call<schema::RegionCreate>(what, [&](schema::RegionCreate::Builder params) {
      params.setAddress(address);
      params.setBytes(bytes);
    }));
  }
};

}  // namespace

TEST_CASE_FIXTURE(
    Fixture,
    "images on their way are charged when they are offered, and one too many is out of memory for that call alone") {
  CHECK(offer(1, 40 * kMiB) == CUDA_SUCCESS);
  CHECK(account.used == before + 40 * kMiB);
  CHECK(offer(2, 40 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(account.used == before + 40 * kMiB);
  CHECK(offer(3, 10 * kMiB) == CUDA_SUCCESS);
  // Offered anew: the pieces start over, and so does the charge.
  CHECK(offer(1, 20 * kMiB) == CUDA_SUCCESS);
  CHECK(account.used == before + 30 * kMiB);
  CHECK(session.end());
  CHECK(account.used <= before);
}

TEST_CASE_FIXTURE(
    Fixture,
    "what is kept of a host region to compare it with is charged, and a message that asks for too much takes nothing") {
  uint64_t address = free_address(256 * kMiB);
  CHECK(create(SessionOrdinal::region_create, address, 200 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(account.used == before);
  CHECK(create(SessionOrdinal::region_create, address, 30 * kMiB) == CUDA_SUCCESS);
  CHECK(account.used == before + 30 * kMiB);
  session.post<schema::RegionDestroy>(SessionOrdinal::region_destroy, [&](auto params) { params.setAddress(address); });
  CHECK(account.used == before);
}

TEST_CASE_FIXTURE(Fixture, "what is kept of a graph's memory is charged, too") {
  CHECK(create(SessionOrdinal::graph_memory_create, 1, 200 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(create(SessionOrdinal::graph_memory_create, 1, 30 * kMiB) == CUDA_SUCCESS);
  CHECK(account.used == before + 30 * kMiB);
}

TEST_CASE("a table of handles grows as far as its account has room, and says that this is why it does not") {
  Account account;
  account.limit = kMiB;
  server::HandleTable table(&account);
  // Scattered, so that each takes a page of the table.
  uint32_t inserted = 0;
  while (table.insert(HandleKind::event, wire::make_handle(HandleKind::event, (inserted + 1) << 10, 1), &table))
    ++inserted;
  CHECK(inserted == 4);
  CHECK(table.out_of_memory());
  CHECK(account.used == account.limit);
  CHECK_FALSE(table.insert(HandleKind::event, 0, &table));
}

TEST_CASE("copies pass through memory that is charged also where the driver pins none") {
  FakeDriver driver;
  driver.table.cuMemHostRegister_v2 = nullptr;
  Account account;
  account.limit = 3 * kMiB;
  auto pool = std::make_shared<server::StagingPool>(driver.table, &account);
  auto block = pool->take(kMiB);
  CHECK(block);
  CHECK(account.used == server::kStagingSlabBytes);
  CHECK_FALSE(pool->take(4 * kMiB));
  CHECK(account.used == server::kStagingSlabBytes);
  block = {};
  pool->abandon();
  CHECK(account.used == 0);
}
