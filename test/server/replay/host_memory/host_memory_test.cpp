// A session reserves the server's own memory before it takes it; a refusal is the call's result; the memory is
// released.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <string>

#include <sys/mman.h>

#include "protocol/fatbin/fatbin.hpp"
#include "protocol/wire/limits.hpp"
#include "server/module_cache/digest.hpp"
#include "server/replay/copy/staging.hpp"
#include "server/replay/module/link_thread.hpp"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::HandleKind;
using wire::SessionOrdinal;

namespace {

constexpr uint64_t kMiB = 1u << 20;
constexpr std::chrono::minutes kLong{5};

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
  // A repeated offer restarts the pieces and the charge.
  CHECK(offer(1, 20 * kMiB) == CUDA_SUCCESS);
  CHECK(account.used == before + 30 * kMiB);
  CHECK(session.end());
  CHECK(account.used <= before);
}

namespace {

// Returns a fat binary of one entry of compressed PTX that claims this length without having it.
std::string compressed_container(uint64_t claimed_bytes) {
  constexpr size_t kEntryHeaderBytes = 64, kPayloadBytes = 16;
  constexpr uint64_t kZstd = 0x8000;
  std::string bytes(fatbin::kContainerHeaderBytes + kEntryHeaderBytes + kPayloadBytes, '\0');
  auto put = [&](size_t at, auto value) { std::memcpy(bytes.data() + at, &value, sizeof value); };
  put(0, fatbin::kContainerMagic);
  put(4, uint16_t{1});
  put(6, uint16_t{fatbin::kContainerHeaderBytes});
  put(8, uint64_t{kEntryHeaderBytes + kPayloadBytes});
  const size_t entry = fatbin::kContainerHeaderBytes;
  put(entry, uint16_t{1});
  put(entry + 4, uint32_t{kEntryHeaderBytes});
  put(entry + 8, uint64_t{kPayloadBytes});
  put(entry + 16, uint32_t{kPayloadBytes});
  put(entry + 28, uint32_t{80});
  put(entry + 40, kZstd);
  put(entry + 56, claimed_bytes);
  return bytes;
}

int inputs_of_linker = 0;

// A session that links, with a linker that accepts everything.
struct LinkFixture : Fixture {
  static constexpr uint64_t kLink = 1;

  LinkFixture() {
    inputs_of_linker = 0;
    driver.table.cuLinkCreate_v2 = [](unsigned, CUjit_option*, void**, CUlinkState* out) -> CUresult {
      *out = reinterpret_cast<CUlinkState>(uintptr_t{1});
      return CUDA_SUCCESS;
    };
    driver.table.cuLinkAddData_v2 = [](CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned, CUjit_option*,
                                       void**) -> CUresult {
      ++inputs_of_linker;
      return CUDA_SUCCESS;
    };
    driver.table.cuLinkDestroy = [](CUlinkState) -> CUresult { return CUDA_SUCCESS; };
    uint64_t sequence = session.call<schema::LinkCreate>(
        SessionOrdinal::link_create, [](schema::LinkCreate::Builder params) { params.setState(kLink); });
    REQUIRE(session.reply(sequence)->as<schema::LinkReply>().getResult() == CUDA_SUCCESS);
  }
  // Returns the additional charge of an added input, once it has arrived; negative: the error, without a charge.
  int64_t add(CUjitInputType type, const std::string& input) {
    const server::Digest digest = server::sha256(std::as_bytes(std::span(input)));
    const auto name = kj::arrayPtr(digest.data(), digest.size());
    session.call<schema::ModuleOffer>(SessionOrdinal::module_offer, [&](schema::ModuleOffer::Builder params) {
      params.setDigest(name);
      params.setBytes(input.size());
    });
    session.post<schema::ModuleData>(
        SessionOrdinal::module_data,
        [&](schema::ModuleData::Builder params) {
          params.setDigest(name);
          params.setLast(true);
        },
        std::as_bytes(std::span(input)));
    const uint64_t arrived = account.used;
    uint64_t sequence = session.call<schema::LinkAdd>(SessionOrdinal::link_add, [&](schema::LinkAdd::Builder params) {
      params.setState(kLink);
      params.setType(type);
      params.setDigest(name);
    });
    REQUIRE(session.state().link_thread().finish(kLong));
    const int result = session.reply(sequence)->as<schema::LinkReply>().getResult();
    if (result == CUDA_SUCCESS) return int64_t(account.used - arrived);
    CHECK(account.used == arrived);
    return -result;
  }
};

}  // namespace

TEST_CASE_FIXTURE(
    LinkFixture,
    "what the linker decompresses is charged by what it claims to be before it is decompressed, wherever it stands") {
  const std::string bomb = compressed_container(60 * kMiB);
  CHECK(add(CU_JIT_INPUT_FATBINARY, bomb) == -CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(add(CU_JIT_INPUT_LIBRARY, "!<arch>\nan object:" + bomb) == -CUDA_ERROR_OUT_OF_MEMORY);
  // One fits, ...
  const std::string fits = compressed_container(kMiB);
  std::string many;
  for (int i = 0; i < 4; ++i) many += fits;
  CHECK(add(CU_JIT_INPUT_FATBINARY, fits) >= int64_t(kMiB));
  // ... but not four of them.
  CHECK(add(CU_JIT_INPUT_OBJECT, many) == -CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(inputs_of_linker == 1);
  session.call<schema::LinkState>(SessionOrdinal::link_destroy, [](auto params) { params.setState(kLink); });
  CHECK(account.used < before + kMiB);
}

TEST_CASE_FIXTURE(LinkFixture, "the linker's compilations are charged with the memory of its compiler") {
  CHECK(add(CU_JIT_INPUT_PTX, std::string(5 * kMiB, ' ')) == -CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(add(CU_JIT_INPUT_PTX, std::string(kMiB, ' ')) > int64_t(kMiB));
  CHECK(inputs_of_linker == 1);
}

TEST_CASE_FIXTURE(LinkFixture,
                  "what claims more than any code is, is cut short or holds addresses never reaches the linker") {
  CHECK(add(CU_JIT_INPUT_FATBINARY, compressed_container(fatbin::kDecompressedBytesMax + 1)) ==
        -CUDA_ERROR_INVALID_IMAGE);
  std::string cut = compressed_container(kMiB);
  cut.pop_back();
  CHECK(add(CU_JIT_INPUT_FATBINARY, cut) == -CUDA_ERROR_INVALID_IMAGE);
  std::string wrapper(24, '\0');
  std::memcpy(wrapper.data(), &fatbin::kWrapperMagic, sizeof fatbin::kWrapperMagic);
  CHECK(add(CU_JIT_INPUT_FATBINARY, wrapper) == -CUDA_ERROR_INVALID_IMAGE);
  CHECK(inputs_of_linker == 0);
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

TEST_CASE_FIXTURE(Fixture, "stored memory of a graph is charged, too") {
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
