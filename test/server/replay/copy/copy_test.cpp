#include <doctest/doctest.h>

#include <numeric>
#include <random>

#include "protocol/wire/limits.hpp"
#include "server/replay/copy/copy.hpp"
#include "server/replay/copy/copy_back.hpp"
#include "server/replay/copy/upload_order.hpp"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::HandleKind;
using wire::SessionOrdinal;

namespace {

std::vector<std::byte> pattern(size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (size_t i = 0; i < bytes; ++i) made[i] = std::byte(i * 7 + (i >> 8));
  return made;
}

struct Fixture {
  FakeDriver driver;
  FakeSession session{driver};
  std::vector<std::byte> device = std::vector<std::byte>(3 * server::kUploadPieceBytes);
  uint64_t stream = 0;

  Fixture() {
    session.enter_primary();
    stream = session.give(HandleKind::stream, reinterpret_cast<void*>(0x53));
    driver.log.clear();
  }
  uint64_t address(size_t offset = 0) { return reinterpret_cast<uint64_t>(device.data() + offset); }

  uint64_t upload(wire::FrameKind kind, std::span<const std::byte> bytes, bool blocking = false, uint64_t on = 0) {
    return session.frame<schema::CopyToDevice>(
        kind, uint32_t(SessionOrdinal::copy_to_device),
        [&](schema::CopyToDevice::Builder params) {
          params.setDestination(address());
          params.setStream(on);
          params.setBlocking(blocking);
        },
        bytes);
  }
  uint64_t download(wire::FrameKind kind, uint64_t bytes, uint64_t on = 0) {
    return session.frame<schema::CopyFromDevice>(kind, uint32_t(SessionOrdinal::copy_from_device),
                                                 [&](schema::CopyFromDevice::Builder params) {
                                                   params.setSource(address());
                                                   params.setBytes(bytes);
                                                   params.setStream(on);
                                                 });
  }
  template <class More>
  uint64_t pitched(SessionOrdinal ordinal, More&& more, std::span<const std::byte> bulk = {},
                   wire::FrameKind kind = wire::FrameKind::called) {
    return session.frame<schema::Copy2D>(
        kind, uint32_t(ordinal),
        [&](schema::Copy2D::Builder params) {
          params.setDevice(address());
          params.setPitchBytes(100);
          params.setHeightRows(10);
          params.setXBytes(3);
          params.setY(2);
          params.setZ(1);
          params.setWidthBytes(20);
          params.setHeight(4);
          params.setDepth(2);
          more(params);
        },
        bulk);
  }
  // Returns the position of packed byte `i` of the box above.
  size_t place(size_t i) { return 3 + i % 20 + ((i / 80 + 1) * 10 + i / 20 % 4 + 2) * 100; }
};

constexpr auto kPosted = wire::FrameKind::posted, kCalled = wire::FrameKind::called;

}  // namespace

TEST_CASE_FIXTURE(Fixture, "a posted copy to the device arrives and needs no reply") {
  auto bytes = pattern(5000);
  upload(kPosted, bytes, false, stream);
  CHECK(std::memcmp(device.data(), bytes.data(), bytes.size()) == 0);
  CHECK(driver.log == std::vector<std::string>{"cuMemcpyHtoDAsync_v2 5000 stream 83"});
  CHECK(session.sent().empty());
  CHECK(session.failed.empty());
}

TEST_CASE_FIXTURE(Fixture, "a large copy to the device goes on its way piece by piece") {
  auto bytes = pattern(2 * server::kUploadPieceBytes + 1000);
  auto count = [&](size_t piece) { return driver.count("cuMemcpyHtoDAsync_v2 " + std::to_string(piece)); };
  upload(kPosted, bytes);
  CHECK(count(server::kUploadPieceBytes) == 2);
  CHECK(count(1000) == 1);
  CHECK(std::memcmp(device.data(), bytes.data(), bytes.size()) == 0);
  CHECK(session.failed.empty());
}

TEST_CASE_FIXTURE(Fixture, "a large copy to the device that somebody waits for ends in small pieces") {
  constexpr size_t kLast = server::kUploadLastPieceBytes;
  auto bytes = pattern(2 * server::kUploadPieceBytes + 1000);
  uint64_t sequence = upload(kCalled, bytes);
  for (size_t piece : {4 * kLast, 2 * kLast, kLast, kLast, size_t(1000)}) {
    CHECK(driver.count("cuMemcpyHtoDAsync_v2 " + std::to_string(piece)) == (piece == kLast ? 2 : 1));
  }
  CHECK(std::memcmp(device.data(), bytes.data(), bytes.size()) == 0);
  CHECK(session.result(sequence) == CUDA_SUCCESS);
}

TEST_CASE("pieces of a copy to the device are bounded, never empty, and make up the copy") {
  for (bool waited_for : {false, true})
    for (uint64_t bytes : {1ull, 1000ull, 2ull << 20, (2ull << 20) + 1, 5ull << 20, 16ull << 20, (64ull << 20) - 1}) {
      uint64_t left = bytes;
      while (left != 0) {
        size_t piece = server::upload_piece(left, waited_for);
        REQUIRE(piece >= 1);
        REQUIRE(piece <= std::min<uint64_t>(left, server::kUploadPieceBytes));
        left -= piece;
        if (left == 0 && waited_for) CHECK(piece <= server::kUploadLastPieceBytes);
      }
    }
}

TEST_CASE_FIXTURE(Fixture, "a copy to the device keeps its bytes until the stream has read them") {
  driver.hold = true;
  std::vector<uint64_t> answers;
  auto bytes = pattern(100'000);
  for (int i = 0; i < 20; ++i) answers.push_back(upload(kCalled, bytes));
  for (uint64_t sequence : answers) CHECK(session.result(sequence) == CUDA_SUCCESS);
  CHECK(device[1] == std::byte{0});
  driver.release();
  CHECK(std::memcmp(device.data(), bytes.data(), bytes.size()) == 0);
}

TEST_CASE_FIXTURE(Fixture, "a blocking copy to the device is answered when the device has the bytes") {
  driver.hold = true;
  uint64_t sequence = upload(kCalled, pattern(100), true);
  CHECK(session.result(sequence) == -1);
  driver.release();
  session.run_waiters();
  CHECK(session.result(sequence) == CUDA_SUCCESS);
}

TEST_CASE("streams are made to wait for the copies that the program takes for done, and for no others") {
  FakeDriver driver;
  server::UploadOrder order;
  order.put_before(driver.table);
  FakeSession session(driver, {.upload_order = &order});
  session.enter_primary();
  driver.hold = true;
  std::vector<std::byte> device(100);
  auto upload = [&](std::span<const std::byte> bytes, bool blocking) {
    session.frame<schema::CopyToDevice>(
        kPosted, uint32_t(SessionOrdinal::copy_to_device),
        [&](schema::CopyToDevice::Builder params) {
          params.setDestination(reinterpret_cast<uint64_t>(device.data()));
          params.setBlocking(blocking);
        },
        bytes);
  };
  auto bytes = pattern(100);
  upload(bytes, false);
  CHECK_FALSE(order.pending());
  SUBCASE("one that says so itself") { upload(bytes, true); }
  SUBCASE("those before a frame that says so") { upload({}, true); }
  CHECK(order.pending());
  driver.release();
}

TEST_CASE_FIXTURE(
    Fixture,
    "an empty blocking copy is answered when what was posted as blocking has arrived, whatever came behind it") {
  driver.hold = true;
  auto bytes = pattern(100);
  upload(kPosted, bytes, true);
  upload(kPosted, pattern(50), true);
  upload(kPosted, pattern(50), false);
  uint64_t first = upload(kCalled, {}, true), second = upload(kCalled, {}, true);
  CHECK(session.result(first) == -1);
  driver.release(1);
  CHECK(device[1] == bytes[1]);
  CHECK(session.result(first) == -1);
  driver.release(3);  // the events behind the first and the second
  session.run_waiters();
  CHECK(session.result(first) == CUDA_SUCCESS);
  CHECK(session.result(second) == CUDA_SUCCESS);
  driver.release();
  CHECK(session.result(upload(kCalled, {}, true)) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "an empty blocking copy waits for nothing that the program did not take for done") {
  driver.hold = true;
  upload(kPosted, pattern(100), false);
  CHECK(session.result(upload(kCalled, {}, true)) == CUDA_SUCCESS);
  driver.release();
}

TEST_CASE_FIXTURE(Fixture, "an empty copy to the device succeeds without the driver") {
  CHECK(session.result(upload(kCalled, {})) == CUDA_SUCCESS);
  CHECK(driver.log.empty());
}

TEST_CASE_FIXTURE(Fixture, "a copy to the device that the driver refuses is answered, or deferred when it was posted") {
  driver.failures["cuMemcpyHtoDAsync_v2"] = CUDA_ERROR_INVALID_VALUE;
  auto bytes = pattern(3 * server::kUploadPieceBytes);
  CHECK(session.result(upload(kCalled, bytes)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(driver.count("cuMemcpyHtoDAsync_v2") == 1);
  upload(kPosted, pattern(10));
  REQUIRE(session.failed.size() == 1);
  CHECK(session.failed[0].result == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE_FIXTURE(Fixture, "copies on streams never given out are refused") {
  uint64_t unknown = wire::make_handle(HandleKind::stream, 50, 1);
  CHECK(session.result(upload(kCalled, pattern(10), false, unknown)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(session.result(download(kCalled, 10, unknown)) == CUDA_ERROR_INVALID_HANDLE);
  download(kPosted, 10, unknown);
  CHECK(session.notices(wire::NoticeOrdinal::copy_data).size() == 1);
  CHECK(driver.log.empty());
}

TEST_CASE_FIXTURE(Fixture, "a copy on a stream that is being captured is refused") {
  driver.capturing = true;
  CHECK(session.result(upload(kCalled, pattern(10), false, stream)) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(session.result(download(kCalled, 10, stream)) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(driver.log.empty());
}

TEST_CASE_FIXTURE(Fixture, "a copy from the device that is soon done is answered by the executor itself") {
  device = pattern(4096);
  uint64_t sequence = download(kCalled, 4096);
  REQUIRE(session.reply(sequence));
  CHECK(session.result(sequence) == CUDA_SUCCESS);
  CHECK(session.reply(sequence)->bulk == device);
  CHECK(session.watcher().size() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a copy from the device that takes its time does not hold up the executor") {
  driver.hold = true;
  device = pattern(1000);
  uint64_t slow = download(kCalled, 1000);
  CHECK(session.result(slow) == -1);
  driver.hold = false;
  CHECK(session.result(download(kCalled, 10)) == CUDA_SUCCESS);
  CHECK(session.watcher().poll() == 0);
  driver.release();
  CHECK(session.watcher().poll() == 1);
  REQUIRE(session.reply(slow));
  CHECK(session.reply(slow)->bulk == device);
  CHECK(session.state().copy_back().pending() == 0);
}

TEST_CASE_FIXTURE(Fixture, "the bytes of a posted copy from the device come as a notice with the frame's sequence") {
  device = pattern(3000);
  uint64_t sequence = download(kPosted, 3000, stream);
  CHECK(session.sent().empty());
  CHECK(session.watcher().poll() == 1);
  auto notices = session.notices(wire::NoticeOrdinal::copy_data);
  REQUIRE(notices.size() == 1);
  auto notice = notices[0]->as<schema::CopyData>();
  CHECK(notice.getSequence() == sequence);
  CHECK(notice.getResult() == CUDA_SUCCESS);
  CHECK(notice.getLast());
  CHECK(notices[0]->bulk == device);
}

TEST_CASE_FIXTURE(Fixture, "a copy that is answered at once comes behind the data of copies before it") {
  device = pattern(3000);
  for (bool to_device : {false, true}) {
    const size_t before = session.sent().size();
    uint64_t earlier = download(kPosted, 3000, stream);
    uint64_t later = to_device ? upload(kCalled, pattern(10), true, stream) : download(kCalled, 10, stream);
    REQUIRE(session.sent().size() == before + 2);
    CHECK(session.sent()[before].notice);
    CHECK(session.sent()[before].as<schema::CopyData>().getSequence() == earlier);
    CHECK(session.sent()[before + 1].sequence == later);
  }
}

TEST_CASE_FIXTURE(Fixture,
                  "a reply waits for copies of other streams that it covers and that end while they are asked for") {
  driver.hold = true;
  device = pattern(3000);
  uint64_t earlier = download(kPosted, 3000, stream);
  uint64_t later = download(kCalled, 10);  // in the NULL stream, which waits for the other
  REQUIRE(session.sent().empty());
  // The earlier copy is queried first, and both end before the query of the later one.
  int queries = 0;
  driver.during = [&](std::string_view name) {
    if (name == "cuEventQuery" && ++queries == 2) driver.release();
  };
  session.state().copy_back().deliver_finished();
  REQUIRE(session.sent().size() == 2);
  CHECK(session.sent()[0].as<schema::CopyData>().getSequence() == earlier);
  CHECK(session.sent()[1].sequence == later);
}

TEST_CASE_FIXTURE(Fixture, "when nothing more can be watched, a copy from the device is waited for on the spot") {
  session.watcher().full = true;
  device = pattern(3000);
  download(kPosted, 3000);
  CHECK(session.notices(wire::NoticeOrdinal::copy_data).size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "a copy from the device that fails is answered in the form it was asked in") {
  driver.failures["cuMemcpyDtoHAsync_v2"] = CUDA_ERROR_INVALID_VALUE;
  CHECK(session.result(download(kCalled, 10)) == CUDA_ERROR_INVALID_VALUE);
  download(kPosted, 10);
  REQUIRE(session.notices(wire::NoticeOrdinal::copy_data).size() == 1);
  CHECK(session.notices(wire::NoticeOrdinal::copy_data)[0]->as<schema::CopyData>().getResult() ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(session.failed.size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "an error that a copy from the device ends with takes the place of its bytes") {
  driver.hold = true;
  uint64_t sequence = download(kCalled, 10);
  driver.failures["cuEventQuery"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  session.watcher().poll();
  CHECK(session.result(sequence) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(session.reply(sequence)->bulk.empty());
  driver.release();
}

TEST_CASE_FIXTURE(Fixture, "a copy from the device of more than a reply may carry ends the session") {
  CHECK_THROWS_AS(download(kCalled, wire::kBulkBytesMax + 1), server::ProtocolFault);
  CHECK_THROWS_AS(download(kCalled, ~uint64_t{0}), server::ProtocolFault);
  CHECK(session.result(download(kCalled, 0)) == CUDA_SUCCESS);
  CHECK(driver.log.empty());
}

TEST_CASE_FIXTURE(Fixture, "a box is copied row by row in both directions") {
  auto packed = pattern(160);
  CHECK(session.result(pitched(
            SessionOrdinal::copy_2d_to_device, [](auto) {}, packed)) == CUDA_SUCCESS);
  for (size_t i = 0; i < packed.size(); ++i) REQUIRE(device[place(i)] == packed[i]);
  uint64_t sequence = pitched(SessionOrdinal::copy_2d_from_device, [](auto) {});
  REQUIRE(session.reply(sequence));
  CHECK(session.reply(sequence)->bulk == packed);
}

TEST_CASE_FIXTURE(Fixture, "a box of an array names the array, and arrays never given out are refused") {
  uint64_t array = session.give(HandleKind::array, reinterpret_cast<void*>(0x61));
  auto to_array = [&](schema::Copy2D::Builder params) { params.setArray(array); };
  CHECK(session.result(pitched(SessionOrdinal::copy_2d_to_device, to_array, pattern(160))) == CUDA_SUCCESS);
  CHECK(session.result(pitched(SessionOrdinal::copy_2d_from_device, to_array)) == CUDA_SUCCESS);
  CHECK(driver.log == std::vector<std::string>{"cuMemcpy3DAsync_v2 to array", "cuMemcpy3DAsync_v2 from array"});
  auto unknown = [&](schema::Copy2D::Builder params) { params.setArray(stream); };
  CHECK(session.result(pitched(SessionOrdinal::copy_2d_to_device, unknown, pattern(160))) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(session.result(pitched(SessionOrdinal::copy_2d_from_device, unknown)) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE_FIXTURE(Fixture, "a box whose bulk is of another size, or that no frame can carry, ends the session") {
  CHECK_THROWS_AS(pitched(
                      SessionOrdinal::copy_2d_to_device, [](auto) {}, pattern(159)),
                  server::ProtocolFault);
  CHECK_THROWS_AS(pitched(
                      SessionOrdinal::copy_2d_to_device, [](auto) {}, pattern(161)),
                  server::ProtocolFault);
  auto huge = [](schema::Copy2D::Builder params) {
    params.setWidthBytes(uint64_t{1} << 32);
    params.setHeight(uint64_t{1} << 32);
    params.setDepth(uint64_t{1} << 63);
  };
  CHECK_THROWS_AS(pitched(SessionOrdinal::copy_2d_to_device, huge), server::ProtocolFault);
  CHECK_THROWS_AS(pitched(SessionOrdinal::copy_2d_from_device, huge), server::ProtocolFault);
  CHECK(driver.log.empty());
}

TEST_CASE_FIXTURE(Fixture, "bulk where none belongs ends the session") {
  auto bytes = pattern(4);
  CHECK_THROWS_AS(session.call<schema::CopyFromDevice>(
                      SessionOrdinal::copy_from_device, [](auto params) { params.setBytes(4); }, bytes),
                  server::ProtocolFault);
  CHECK_THROWS_AS(pitched(
                      SessionOrdinal::copy_2d_from_device, [](auto) {}, bytes),
                  server::ProtocolFault);
}

TEST_CASE_FIXTURE(Fixture, "random copies in both directions through slow streams lose and mix up nothing") {
  const unsigned seed = 4711;
  INFO("seed ", seed);
  std::mt19937 random(seed);
  std::vector<std::byte> model(256u << 10);
  device.assign(model.size(), std::byte{0});
  driver.hold = true;
  std::vector<std::pair<uint64_t, std::vector<std::byte>>> expected;
  for (int step = 0; step < 400; ++step) {
    size_t offset = random() % model.size(), bytes = 1 + random() % (model.size() - offset);
    if (random() % 2) {
      auto data = pattern(bytes);
      for (auto& byte : data) byte ^= std::byte(step);
      session.post<schema::CopyToDevice>(
          SessionOrdinal::copy_to_device,
          [&](schema::CopyToDevice::Builder params) { params.setDestination(address(offset)); }, data);
      std::copy(data.begin(), data.end(), model.begin() + offset);
    } else {
      uint64_t sequence = session.call<schema::CopyFromDevice>(SessionOrdinal::copy_from_device,
                                                               [&](schema::CopyFromDevice::Builder params) {
                                                                 params.setSource(address(offset));
                                                                 params.setBytes(bytes);
                                                               });
      expected.emplace_back(sequence, std::vector<std::byte>(model.begin() + offset, model.begin() + offset + bytes));
    }
    driver.release(random() % 5);
    if (random() % 3 == 0) session.watcher().poll();
  }
  driver.release();
  session.watcher().poll();
  for (auto& [sequence, bytes] : expected) {
    REQUIRE(session.reply(sequence));
    REQUIRE(session.reply(sequence)->bulk == bytes);
  }
}

TEST_CASE_FIXTURE(Fixture, "ping, sink and source answer with what they were asked for") {
  CHECK(session.result(session.call<schema::Result>(SessionOrdinal::ping, [](auto) {})) == CUDA_SUCCESS);
  CHECK(session.result(session.call<schema::Result>(
            SessionOrdinal::sink, [](auto) {}, pattern(1'000'000))) == CUDA_SUCCESS);
  uint64_t sequence =
      session.call<schema::Source>(SessionOrdinal::source, [](auto params) { params.setBytes(70'000); });
  CHECK(session.reply(sequence)->bulk.size() == 70'000);
  CHECK_THROWS_AS(session.call<schema::Source>(SessionOrdinal::source,
                                               [](auto params) { params.setBytes(wire::kBulkBytesMax + 1); }),
                  server::ProtocolFault);
}
