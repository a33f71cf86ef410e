#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "server/replay/copy/copy.hpp"
#include "server/replay/host_memory/host_regions.hpp"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::HandleKind;
using wire::NoticeOrdinal;
using wire::SessionOrdinal;

namespace {

constexpr auto kPosted = wire::FrameKind::posted, kCalled = wire::FrameKind::called;
constexpr size_t kBytes = 64 << 10;

// A session with one shared region, mapped at `theirs` in the client.
struct Fixture {
  FakeDriver driver;
  FakeSession session{driver};
  std::vector<std::byte> device = std::vector<std::byte>(kBytes);
  uint64_t stream = 0, region = 0;
  int file = memfd_create("pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  std::byte* theirs = nullptr;

  Fixture() {
    session.enter_primary();
    stream = session.give(HandleKind::stream, reinterpret_cast<void*>(0x53));
    REQUIRE(ftruncate(file, kBytes) == 0);
    REQUIRE(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(memory != MAP_FAILED);
    theirs = static_cast<std::byte*>(memory);
    // Unmapped addresses, with room for a second region behind.
    void* place = mmap(nullptr, 2 * kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(munmap(place, 2 * kBytes) == 0);
    region = reinterpret_cast<uint64_t>(place);
    session.state().host_regions().take_descriptors_from([this](uint64_t) { return std::exchange(file, -1); });
    uint64_t shared = session.call<schema::RegionShare>(SessionOrdinal::region_share, [&](auto params) {
      params.setAddress(region);
      params.setBytes(kBytes);
      params.setDescriptor(1);
    });
    REQUIRE(session.result(shared) == CUDA_SUCCESS);
    driver.log.clear();
    session.outbox_.sent.clear();
  }
  ~Fixture() { munmap(theirs, kBytes); }

  uint64_t upload(wire::FrameKind kind, size_t offset, uint64_t bytes, bool blocking = false, uint64_t on = 0) {
    return session.frame<schema::CopyRegionToDevice>(kind, uint32_t(SessionOrdinal::copy_region_to_device),
                                                     [&](schema::CopyRegionToDevice::Builder params) {
                                                       params.setRegion(region + offset);
                                                       params.setDestination(reinterpret_cast<uint64_t>(device.data()));
                                                       params.setBytes(bytes);
                                                       params.setStream(on);
                                                       params.setBlocking(blocking);
                                                     });
  }
  uint64_t download(size_t offset, uint64_t bytes, uint64_t on = 0) {
    return session.call<schema::CopyRegionFromDevice>(SessionOrdinal::copy_region_from_device,
                                                      [&](schema::CopyRegionFromDevice::Builder params) {
                                                        params.setRegion(region + offset);
                                                        params.setSource(reinterpret_cast<uint64_t>(device.data()));
                                                        params.setBytes(bytes);
                                                        params.setStream(on);
                                                      });
  }
  // Sends an empty blocking copy, which is answered when all data that the program regards as copied has arrived.
  uint64_t await_arrival() {
    return session.call<schema::CopyToDevice>(SessionOrdinal::copy_to_device,
                                              [](schema::CopyToDevice::Builder params) { params.setBlocking(true); });
  }
  // Returns the sequences of frames whose bytes were reported as read.
  std::vector<uint64_t> read() const {
    std::vector<uint64_t> found;
    for (const Sent* sent : session.notices(NoticeOrdinal::region_read))
      found.push_back(sent->as<schema::RegionRead>().getSequence());
    return found;
  }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "the device reads a shared region where it is, and the client hears when it has") {
  driver.hold = true;
  std::memset(theirs, 5, kBytes);
  uint64_t first = upload(kPosted, 100, 1000, false, stream);
  uint64_t second = upload(kPosted, 0, kBytes, false, stream);
  CHECK(session.watcher().poll() == 0);
  CHECK(read().empty());
  driver.release(2);  // the copy and the event behind it
  CHECK(session.watcher().poll() == 1);
  CHECK(read() == std::vector<uint64_t>{first});
  CHECK(device[999] == std::byte{5});
  CHECK(device[1000] == std::byte{0});
  driver.release();
  CHECK(session.watcher().poll() == 1);
  CHECK(read() == std::vector<uint64_t>{first, second});
  CHECK(session.failed.empty());
}

TEST_CASE_FIXTURE(Fixture, "a called copy out of a shared region is answered when the device has the bytes") {
  driver.hold = true;
  theirs[7] = std::byte{9};
  uint64_t sequence = upload(kCalled, 0, 100);
  CHECK(session.result(sequence) == -1);
  driver.release();
  session.run_waiters();
  CHECK(session.result(sequence) == CUDA_SUCCESS);
  CHECK(device[7] == std::byte{9});
  CHECK(read().empty());
}

TEST_CASE_FIXTURE(Fixture, "a query whether the program's copies have arrived waits for one out of a shared region") {
  driver.hold = true;
  upload(kPosted, 0, 100, true);
  upload(kPosted, 0, 100, false);
  uint64_t arrival = await_arrival();
  CHECK(session.result(arrival) == -1);
  driver.release(3);  // the first copy and the two events behind it
  session.run_waiters();
  CHECK(session.result(arrival) == CUDA_SUCCESS);
  driver.release();
  CHECK(session.watcher().poll() == 2);
}

TEST_CASE_FIXTURE(Fixture, "a copy into a shared region is answered when the client finds the bytes there") {
  device[3] = std::byte{7};
  uint64_t at_once = download(8, 100);
  CHECK(session.result(at_once) == CUDA_SUCCESS);
  CHECK(theirs[11] == std::byte{7});
  CHECK(session.reply(at_once)->bulk.empty());
  driver.hold = true;
  device[3] = std::byte{8};
  uint64_t later = download(kBytes - 100, 100, stream);
  CHECK(session.watcher().poll() == 0);
  CHECK(session.result(later) == -1);
  driver.release();
  CHECK(session.watcher().poll() == 1);
  CHECK(session.result(later) == CUDA_SUCCESS);
  CHECK(theirs[kBytes - 97] == std::byte{8});
}

TEST_CASE_FIXTURE(Fixture, "data of earlier copies leave before the answer of a copy into a shared region") {
  driver.hold = true;
  session.frame<schema::CopyFromDevice>(kPosted, uint32_t(SessionOrdinal::copy_from_device), [&](auto params) {
    params.setSource(reinterpret_cast<uint64_t>(device.data()));
    params.setBytes(10);
  });
  driver.release();
  driver.hold = false;
  download(0, 100);
  REQUIRE(session.sent().size() == 2);
  CHECK(session.sent()[0].ordinal == NoticeOrdinal::copy_data);
}

TEST_CASE_FIXTURE(Fixture, "only what is within a shared region is copied, and the client gets its bytes back") {
  // A second region, whose pages the client does not map.
  uint64_t mirrored = session.call<schema::RegionCreate>(SessionOrdinal::region_create, [&](auto params) {
    params.setAddress(region + kBytes);
    params.setBytes(4096);
  });
  REQUIRE(session.result(mirrored) == CUDA_SUCCESS);
  for (auto [offset, bytes] : {std::pair<size_t, uint64_t>{0, kBytes + 1},
                               {1, kBytes},
                               {kBytes - 1, 2},
                               {kBytes, 1},
                               {0, 0},
                               {1, ~uint64_t{0}},
                               {size_t(0) - 4096, 10}}) {
    CAPTURE(offset);
    CAPTURE(bytes);
    CHECK(session.result(upload(kCalled, offset, bytes)) == CUDA_ERROR_INVALID_VALUE);
    CHECK(session.result(download(offset, bytes)) == CUDA_ERROR_INVALID_VALUE);
    const size_t failed = session.failed.size(), notices = read().size();
    uint64_t posted = upload(kPosted, offset, bytes);
    REQUIRE(session.failed.size() == failed + 1);
    CHECK(session.failed.back().result == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(read().size() == notices + 1);
    CHECK(read().back() == posted);
  }
  CHECK(driver.count("cuMemcpy") == 0);
}

TEST_CASE_FIXTURE(Fixture, "copies of a shared region that the driver refuses, or into a capture, end with the error") {
  CUresult expected = CUDA_ERROR_INVALID_VALUE;
  SUBCASE("refused") {
    driver.failures["cuMemcpyHtoDAsync_v2"] = CUDA_ERROR_INVALID_VALUE;
    driver.failures["cuMemcpyDtoHAsync_v2"] = CUDA_ERROR_INVALID_VALUE;
  }
  SUBCASE("captured") {
    driver.capturing = true;
    expected = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  CHECK(session.result(upload(kCalled, 0, 10, false, stream)) == expected);
  CHECK(session.result(download(0, 10, stream)) == expected);
  uint64_t posted = upload(kPosted, 0, 10, true, stream);
  REQUIRE(session.failed.size() == 1);
  CHECK(session.failed[0].result == expected);
  CHECK(read() == std::vector<uint64_t>{posted});
}

TEST_CASE_FIXTURE(Fixture, "when nothing more can be watched, copies of a shared region are waited for on the spot") {
  session.watcher().full = true;
  driver.hold = true;
  std::atomic<bool> over{false};
  std::thread device_goes_on([&] {
    for (; !over; std::this_thread::yield()) driver.release();
  });
  uint64_t sequence = upload(kPosted, 0, 100);
  over = true;
  device_goes_on.join();
  CHECK(read() == std::vector<uint64_t>{sequence});
}
