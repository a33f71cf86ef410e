#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <thread>

#include "protocol/wire/limits.hpp"
#include "schema/api_context.capnp.h"
#include "server/replay/host_memory/host_regions.hpp"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::NoticeOrdinal;
using wire::SessionOrdinal;

namespace {

// Returns a free address range of this process.
uint64_t free_address(size_t bytes = 1u << 20) {
  void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  munmap(memory, bytes);
  return reinterpret_cast<uint64_t>(memory);
}

bool is_mapped(uint64_t address) {
  unsigned char resident = 0;
  return mincore(reinterpret_cast<void*>(address & ~uint64_t{4095}), 1, &resident) == 0;
}

struct Fixture {
  FakeDriver driver;
  FakeSession session{driver};
  uint64_t base = free_address();

  Fixture() { session.enter_primary(); }

  int create(uint64_t address, uint64_t bytes) {
    return session.result(
        session.call<schema::RegionCreate>(SessionOrdinal::region_create, [&](schema::RegionCreate::Builder params) {
          params.setAddress(address);
          params.setBytes(bytes);
        }));
  }
  void destroy(uint64_t address) {
    session.post<schema::RegionDestroy>(SessionOrdinal::region_destroy,
                                        [&](auto params) { params.setAddress(address); });
  }
  void write(uint64_t address, uint64_t offset, std::span<const std::byte> bytes, std::span<const uint8_t> mask = {}) {
    session.post<schema::RegionChange>(
        SessionOrdinal::region_write,
        [&](schema::RegionChange::Builder params) {
          params.setAddress(address);
          params.setOffset(offset);
          if (!mask.empty()) params.setChanged(kj::arrayPtr(mask.data(), mask.size()));
        },
        bytes);
  }
  void synchronise() {
    auto table = server::generated_replay_table();
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].name && std::string_view(table[i].name) == "cuCtxSynchronize") {
        session.frame<schema::CuCtxSynchronizeParams>(wire::FrameKind::called, uint32_t(i) + wire::kFirstDriverOrdinal,
                                                      [](auto) {});
      }
    }
  }
};

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (int value : values) bytes.push_back(std::byte(value));
  return bytes;
}

}  // namespace

TEST_CASE_FIXTURE(Fixture, "A region is mapped at the client's address, registered, and gone after it was destroyed") {
  REQUIRE(create(base, 100) == CUDA_SUCCESS);
  CHECK(driver.registered.contains(reinterpret_cast<void*>(base)));
  CHECK(is_mapped(base));
  CHECK(create(base, 100) == CUDA_ERROR_NOT_SUPPORTED);
  destroy(base);
  CHECK(driver.registered.empty());
  CHECK_FALSE(is_mapped(base));
  destroy(base);
  CHECK(session.failed.size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "The client's changes are in the region, and only the bytes that they name") {
  REQUIRE(create(base + 16, 8) == CUDA_SUCCESS);
  auto* memory = reinterpret_cast<std::byte*>(base + 16);
  memory[3] = std::byte{77};  // the device's
  const uint8_t mask[] = {0b101};
  write(base + 16, 2, bytes_of({5, 6, 7}), mask);
  CHECK(memory[2] == std::byte{5});
  CHECK(memory[3] == std::byte{77});
  CHECK(memory[4] == std::byte{7});
  // Bytes that came from the client are not sent back.
  synchronise();
  auto sent = session.notices(NoticeOrdinal::region_data);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0]->bulk == bytes_of({77}));
  CHECK(sent[0]->as<schema::RegionChange>().getOffset() == 3);
  CHECK(sent[0]->as<schema::RegionChange>().getAddress() == base + 16);
}

TEST_CASE_FIXTURE(Fixture, "The device's changes leave before the answer to a synchronisation, once") {
  REQUIRE(create(base, 600'000) == CUDA_SUCCESS);
  auto* memory = reinterpret_cast<std::byte*>(base);
  std::fill(memory, memory + 600'000, std::byte{9});
  synchronise();
  auto sent = session.notices(NoticeOrdinal::region_data);
  size_t bytes = 0;
  for (const Sent* one : sent) {
    CHECK(one->bulk.size() <= wire::kRegionPieceBytes);
    bytes += one->bulk.size();
  }
  CHECK(bytes == 600'000);
  CHECK_FALSE(session.sent().back().notice);
  synchronise();
  CHECK(session.notices(NoticeOrdinal::region_data).size() == sent.size());
}

TEST_CASE_FIXTURE(Fixture, "Addresses that are no place for a region are refused") {
  int local = 0;
  CHECK(create(reinterpret_cast<uint64_t>(&local), 4) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(create(0, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(wire::kRegionAddressMin - 4096, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(wire::kRegionAddressMax - 4096, 8192) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(~uint64_t{0} - 10, 100) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(base, ~uint64_t{0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(base, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(0x1000'0000'0000, wire::kRegionBytesMax + 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(driver.registered.empty());
  driver.failures["cuMemHostRegister_v2"] = CUDA_ERROR_OUT_OF_MEMORY;
  CHECK(create(base, 100) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_FALSE(is_mapped(base));
}

TEST_CASE_FIXTURE(Fixture, "Writes that do not fit change nothing, and malformed ones end the session") {
  REQUIRE(create(base, 8) == CUDA_SUCCESS);
  write(base, 6, bytes_of({1, 2, 3}));
  write(base, ~uint64_t{0}, bytes_of({1}));
  write(base + 8, 0, bytes_of({1}));
  CHECK(session.failed.size() == 3);
  for (int i = 0; i < 16; ++i) CHECK(reinterpret_cast<std::byte*>(base)[i] == std::byte{0});
  const uint8_t mask[] = {1, 1};
  CHECK_THROWS_AS(write(base, 0, bytes_of({1}), mask), server::ProtocolFault);
  CHECK_THROWS_AS(write(base, 0, {}), server::ProtocolFault);
  CHECK_THROWS_AS(write(base, 0, std::vector<std::byte>(wire::kRegionPieceBytes + 1)), server::ProtocolFault);
}

TEST_CASE_FIXTURE(
    Fixture, "Regions that share a page are both there, begin with zeros, and the page goes with the last of them") {
  REQUIRE(create(base + 4096 + 100, 5000) == CUDA_SUCCESS);  // two pages
  std::memset(reinterpret_cast<void*>(base + 4096), 7, 100);
  REQUIRE(create(base + 50, 4096) == CUDA_SUCCESS);  // one more, and a part of the first
  CHECK(driver.registered.size() == 2);
  for (uint64_t at = base + 50; at < base + 50 + 4096; ++at) REQUIRE(*reinterpret_cast<uint8_t*>(at) == 0);
  REQUIRE(create(base + 3 * 4096, 4096) == CUDA_SUCCESS);
  // A range over two regions belongs to neither.
  CHECK(create(base + 4096 + 100 + 4999, 10) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(create(base + 60, 10) == CUDA_ERROR_NOT_SUPPORTED);
  destroy(base + 4096 + 100);
  CHECK(is_mapped(base + 4096));
  CHECK(driver.registered.size() == 3);
  destroy(base + 50);
  CHECK_FALSE(is_mapped(base));
  CHECK_FALSE(is_mapped(base + 4096));
  CHECK(is_mapped(base + 3 * 4096));
  CHECK(driver.registered.size() == 1);
  destroy(base + 3 * 4096);
  CHECK(driver.registered.empty());
}

TEST_CASE_FIXTURE(Fixture, "A region that gets only some of its pages leaves none behind") {
  REQUIRE(create(base + 4096, 100) == CUDA_SUCCESS);
  REQUIRE(mmap(reinterpret_cast<void*>(base + 8192), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
          MAP_FAILED);
  CHECK(create(base + 5, 3000) == CUDA_SUCCESS);
  destroy(base + 5);
  CHECK(create(base + 4096 + 100, 8000) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(driver.registered.size() == 1);
  destroy(base + 4096);
  CHECK_FALSE(is_mapped(base + 4096));
  munmap(reinterpret_cast<void*>(base + 8192), 4096);
}

TEST_CASE_FIXTURE(Fixture, "The end of a session unmaps its regions") {
  REQUIRE(create(base, 5000) == CUDA_SUCCESS);
  CHECK(session.end());
  CHECK_FALSE(is_mapped(base));
  CHECK_FALSE(is_mapped(base + 4096));
}

TEST_CASE_FIXTURE(Fixture, "the device's changes leave before a callback is requested, in a graph too") {
  REQUIRE(create(base, 64) == CUDA_SUCCESS);
  uint64_t stream = session.give(wire::HandleKind::stream, reinterpret_cast<void*>(0x53));
  driver.capturing = true;
  session.post<schema::HostFunction>(SessionOrdinal::host_function, [&](schema::HostFunction::Builder params) {
    params.setStream(stream);
    params.setCallback(7);
  });
  driver.capturing = false;
  REQUIRE(driver.host_functions.size() == 1);
  session.outbox_.sent.clear();
  *reinterpret_cast<std::byte*>(base + 5) = std::byte{9};
  std::thread stream_thread([&] { driver.host_functions[0](); });
  {
    std::unique_lock lock(session.outbox_.mutex);
    session.outbox_.changed.wait(lock, [&] { return session.notices(NoticeOrdinal::host_callback).size() == 1; });
    REQUIRE(session.sent().size() == 2);
    CHECK(session.sent()[0].ordinal == NoticeOrdinal::region_data);
    CHECK(session.sent()[0].as<schema::RegionChange>().getOffset() == 5);
  }
  session.post<schema::HostFunctionDone>(SessionOrdinal::host_function_done,
                                         [&](auto params) { params.setCallback(7); });
  stream_thread.join();
}

// --- memory that the client has, too
// ------------------------------------------------------------------------------------------------------------

namespace {

struct SharedFixture : Fixture {
  static constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  std::map<uint64_t, int> given;

  SharedFixture() {
    session.state().host_regions().take_descriptors_from([this](uint64_t number) {
      auto found = given.find(number);
      return found == given.end() ? -1 : given.extract(found).mapped();
    });
  }
  ~SharedFixture() {
    for (auto& [number, descriptor] : given) close(descriptor);
  }
  // Returns the client's mapping of the memory that it gives under this number.
  std::byte* give(uint64_t number, size_t bytes, int seals = kSeals) {
    int file = memfd_create("pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(file, off_t(bytes)) == 0);
    REQUIRE(fcntl(file, F_ADD_SEALS, seals) == 0);
    given[number] = file;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(memory != MAP_FAILED);
    return static_cast<std::byte*>(memory);
  }
  int share(uint64_t address, uint64_t bytes, uint64_t number) {
    return session.result(
        session.call<schema::RegionShare>(wire::SessionOrdinal::region_share, [&](schema::RegionShare::Builder params) {
          params.setAddress(address);
          params.setBytes(bytes);
          params.setDescriptor(number);
        }));
  }
};

}  // namespace

TEST_CASE_FIXTURE(
    SharedFixture,
    "Shared memory is the client's pages at the client's address, registered, and nothing of it travels") {
  std::byte* theirs = give(1, 8192);
  theirs[5000] = std::byte{7};
  REQUIRE(share(base, 8000, 1) == CUDA_SUCCESS);
  CHECK(driver.registered.contains(reinterpret_cast<void*>(base)));
  auto* ours = reinterpret_cast<std::byte*>(base);
  CHECK(ours[5000] == std::byte{7});
  ours[1] = std::byte{9};
  CHECK(theirs[1] == std::byte{9});
  synchronise();
  CHECK(session.notices(NoticeOrdinal::region_data).empty());
  destroy(base);
  CHECK_FALSE(driver.registered.contains(reinterpret_cast<void*>(base)));
  CHECK_FALSE(is_mapped(base));
  CHECK(theirs[1] == std::byte{9});
}

TEST_CASE_FIXTURE(SharedFixture,
                  "Shared memory that could be resized, is too short, of another kind, or not there is refused, and "
                  "nothing is mapped") {
  give(1, 8192, 0);
  CHECK(share(base, 8192, 1) == CUDA_ERROR_INVALID_VALUE);
  give(2, 8192, F_SEAL_GROW);
  CHECK(share(base, 8192, 2) == CUDA_ERROR_INVALID_VALUE);
  give(3, 4096);
  CHECK(share(base, 4097, 3) == CUDA_ERROR_INVALID_VALUE);
  given[4] = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  CHECK(share(base, 4096, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(share(base, 4096, 5) == CUDA_ERROR_NOT_FOUND);
  CHECK(given.empty());
  CHECK_FALSE(is_mapped(base));
  CHECK(driver.registered.empty());
}

TEST_CASE_FIXTURE(
    SharedFixture,
    "Shared memory is refused off a page's boundary, over other regions, and where this process has something else") {
  give(1, 8192);
  CHECK(share(base + 16, 4096, 1) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(create(base + 4096, 100) == CUDA_SUCCESS);
  give(2, 8192);
  CHECK(share(base, 8192, 2) == CUDA_ERROR_NOT_SUPPORTED);
  give(3, 4096);
  CHECK(share(base + 4096, 4096, 3) == CUDA_ERROR_NOT_SUPPORTED);
  std::byte* taken = give(4, 4096);
  give(5, 4096);
  CHECK(share(reinterpret_cast<uint64_t>(taken), 4096, 5) == CUDA_ERROR_NOT_SUPPORTED);
  give(6, 4096);
  CHECK(share(base, 4096, 6) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(SharedFixture,
                  "A change that is sent for shared memory is refused: there is nothing to bring together") {
  std::byte* theirs = give(1, 4096);
  REQUIRE(share(base, 4096, 1) == CUDA_SUCCESS);
  write(base, 0, bytes_of({1, 2, 3}));
  CHECK(theirs[0] == std::byte{0});
}

TEST_CASE_FIXTURE(Fixture, "The client's changes get through while the device's changes wait for room") {
  // The client's next message may make room, and that message may be a write.
  REQUIRE(create(base, 100) == CUDA_SUCCESS);
  auto* memory = reinterpret_cast<std::byte*>(base);
  memory[3] = std::byte{77};
  size_t written = 0;
  session.outbox_.before_notice = [&](NoticeOrdinal ordinal) {
    if (ordinal != NoticeOrdinal::region_data) return;
    const std::vector<std::byte> bytes = bytes_of({5});
    written += done_elsewhere([&] { session.state().host_regions().write(base, 50, bytes, {}); });
  };
  synchronise();
  CHECK(written == 1);
  CHECK(memory[50] == std::byte{5});
}
