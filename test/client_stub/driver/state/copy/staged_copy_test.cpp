#include "client_stub/driver/state/copy/staged_copy.hpp"

#include <unistd.h>

#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "client_stub/driver/state/copy/chunked_uploads.hpp"
#include "client_stub/session/cached_bulk.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "client_stub/driver/state/copy/shared_staging.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/composition/notices.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"
#include "test/client_stub/driver/state/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

using test::SentFrame;
using wire::SessionOrdinal;

constexpr uint64_t kBase = 0x7000'0000'0000;
constexpr size_t kDeviceBytes = 96u << 20;

std::vector<std::byte> random_bytes(size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(count + 8);
  for (size_t i = 0; i < count; i += 8) {
    const uint64_t word = random();
    std::memcpy(&out[i], &word, sizeof word);
  }
  out.resize(count);
  return out;
}

// A server on this machine with its device's memory at kBase. It executes posted frames at once, or in run() while
// `stands` is set.
struct StagingServer : test::DeviceProcess {
  explicit StagingServer(const char* dedup = "off")
      : DeviceProcess((setenv("GPUWIRE_DEDUP", dedup, 1), 1)), memory(kDeviceBytes) {
    unsetenv("GPUWIRE_DEDUP");
    session->road = "shm";
    address_map().insert({.base = kBase, .bytes = memory.size(), .kind = RangeKind::device});
    session->on_flush = [this] {
      if (!stands) run();
    };
    session->on_poll = session->on_flush;
    session->serve(uint32_t(SessionOrdinal::copy_region_to_device),
                   [this](const SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
                     run();
                     reply.initRoot<schema::Result>().setResult(fails_to ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
                     if (!fails_to) frame.read<schema::CopyRegionToDevice>([&](auto copy) { read_region(copy); });
                   });
    session->serve(uint32_t(SessionOrdinal::copy_region_from_device),
                   [this](const SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
                     run();
                     reply.initRoot<schema::Result>().setResult(fails_from ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS);
                     frame.read<schema::CopyRegionFromDevice>([&](auto copy) {
                       std::memcpy(reinterpret_cast<void*>(copy.getRegion()), &memory[copy.getSource() - kBase],
                                   copy.getBytes());
                     });
                   });
    session->serve(uint32_t(SessionOrdinal::copy_to_device),
                   [this](const SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
                     run();
                     reply.initRoot<schema::Result>();
                     frame.read<schema::CopyToDevice>([&](auto copy) { take_bulk(copy, frame); });
                   });
    session->serve(uint32_t(SessionOrdinal::copy_from_device),
                   [this](const SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink& sink) {
                     run();
                     reply.initRoot<schema::Result>();
                     frame.read<schema::CopyFromDevice>([&](auto copy) {
                       test::FakeSession::fill(sink, {&memory[copy.getSource() - kBase], copy.getBytes()});
                     });
                   });
  }
  ~StagingServer() {
    stands = false;
    for (auto& [number, descriptor] : session->given) close(descriptor);
  }

  void read_region(schema::CopyRegionToDevice::Reader copy) {
    std::memcpy(&memory[copy.getDestination() - kBase], reinterpret_cast<const void*>(copy.getRegion()),
                copy.getBytes());
  }
  void take_bulk(schema::CopyToDevice::Reader copy, const SentFrame& frame) {
    if (!frame.bulk.empty()) std::memcpy(&memory[copy.getDestination() - kBase], frame.bulk.data(), frame.bulk.size());
  }
  // Executes the frames posted since, in order; at most so many.
  void run(size_t most = ~size_t{0}) {
    std::lock_guard lock(running);
    auto frames = session->frames();
    for (; executed < frames.size() && most != 0; ++executed, --most) {
      const SentFrame& frame = frames[executed];
      if (frame.kind != wire::FrameKind::posted) continue;
      if (frame.ordinal == uint32_t(SessionOrdinal::copy_to_device))
        frame.read<schema::CopyToDevice>([&](auto copy) { take_bulk(copy, frame); });
      if (frame.ordinal != uint32_t(SessionOrdinal::copy_region_to_device)) continue;
      if (fails_to) t_context->deferred.store(CUDA_ERROR_INVALID_VALUE);
      else frame.read<schema::CopyRegionToDevice>([&](auto copy) { read_region(copy); });
      notify<schema::RegionRead>(wire::NoticeOrdinal::region_read,
                                 [&](auto read) { read.setSequence(frame.sequence); });
    }
  }
  template <class Params, class Fill>
  static void notify(wire::NoticeOrdinal ordinal, Fill&& fill) {
    capnp::MallocMessageBuilder message;
    fill(message.initRoot<Params>());
    capnp::SegmentArrayMessageReader reader(message.getSegmentsForOutput());
    test::part<client::Notices>().notice(ordinal, reader);
  }
  size_t count(SessionOrdinal ordinal) const { return session->count(uint32_t(ordinal)); }
  SharedStaging& staging() const { return test::part<client::SharedStaging>(); }
  bool has(std::span<const std::byte> bytes, size_t offset = 0) {
    run();
    return std::memcmp(&memory[offset], bytes.data(), bytes.size()) == 0;
  }
  size_t bulk_bytes() const {
    size_t bytes = 0;
    for (const SentFrame& frame : session->frames()) bytes += frame.bulk.size();
    return bytes;
  }
  // Visits the frames of this ordinal, decoded.
  template <class Params, class Visit>
  void for_each(SessionOrdinal ordinal, Visit&& visit) const {
    for (const SentFrame& frame : session->frames()) {
      if (frame.ordinal == uint32_t(ordinal)) frame.read<Params>([&](auto params) { visit(frame, params); });
    }
  }

  std::vector<std::byte> memory;
  // Bounds the server's shared and other regions; the end of a block makes room.
  void has_room_for(size_t most) {
    auto room = [this, most](const SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
      size_t bytes = 0;
      if (frame.ordinal == uint32_t(SessionOrdinal::region_share))
        frame.read<schema::RegionShare>([&](auto share) { bytes = share.getBytes(); });
      else frame.read<schema::RegionCreate>([&](auto create) { bytes = create.getBytes(); });
      const bool fits = charged + bytes <= most + count(SessionOrdinal::region_destroy) * kStagingBlockBytes;
      if (fits) charged += bytes;
      reply.initRoot<schema::Result>().setResult(fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
    };
    session->serve(uint32_t(SessionOrdinal::region_share), room);
    session->serve(uint32_t(SessionOrdinal::region_create), room);
  }
  // Returns the addresses of the blocks that copies to the device have used.
  std::set<void*> regions() const {
    std::set<void*> found;
    for_each<schema::CopyRegionToDevice>(SessionOrdinal::copy_region_to_device, [&](const auto&, auto copy) {
      found.insert(reinterpret_cast<void*>(copy.getRegion()));
    });
    return found;
  }

  size_t charged = 0;
  bool stands = false, fails_to = false, fails_from = false;
  std::mutex running;
  size_t executed = 0;
};

CUresult upload(std::span<const std::byte> bytes, size_t offset = 0) {
  return custom::cuMemcpyHtoDAsync_v2(kBase + offset, bytes.data(), bytes.size(), nullptr, false);
}
CUresult upload_blocking(std::span<const std::byte> bytes) {
  return custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false);
}

// Returns the size of each piece but the last of a copy of so many bytes.
size_t piece_bytes(size_t bytes) {
  const size_t pieces = (bytes + kStagedPieceBytesMax - 1) / kStagedPieceBytesMax;
  return ((bytes + pieces - 1) / pieces + 4095) / 4096 * 4096;
}

}  // namespace

TEST_CASE("Pageable memory of any size and place goes to the device and back by way of staging, and none in frames") {
  const unsigned seed = 41;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  StagingServer server;
  const auto bytes = random_bytes(40u << 20, seed);
  for (int round = 0; round < 40; ++round) {
    const size_t count = wire::kPostedBulkBytesMax + 1 + random() % (round % 4 ? 3u << 20 : 30u << 20);
    const size_t offset = random() % (bytes.size() - count), place = random() % (kDeviceBytes - count);
    CAPTURE(count);
    const std::span source(&bytes[offset], count);
    // The first copy has blocks made.
    if (round == 0) REQUIRE(upload(bytes) == CUDA_SUCCESS);
    REQUIRE((random() % 2 ? upload(source, place)
                          : custom::cuMemcpyHtoD_v2(kBase + place, source.data(), count, false)) == CUDA_SUCCESS);
    REQUIRE(server.has(source, place));
    std::vector<std::byte> back(count + 2);
    REQUIRE(custom::cuMemcpyDtoH_v2(&back[1], kBase + place, count, false) == CUDA_SUCCESS);
    REQUIRE(std::memcmp(&back[1], source.data(), count) == 0);
    REQUIRE(back.front() == std::byte{0});
    REQUIRE(back.back() == std::byte{0});
  }
  CHECK(server.bulk_bytes() == 0);
  CHECK(server.count(SessionOrdinal::copy_to_device) == 0);
  CHECK(server.count(SessionOrdinal::copy_from_device) == 0);
  CHECK(server.staging().traffic().to_device_bytes > 40u << 20);
  CHECK(server.staging().traffic().from_device_bytes > 10u << 20);
}

TEST_CASE("The pieces of a copy are its bytes, each once, in shared blocks, and none is short") {
  constexpr size_t kRounded = 64u << 10;  // all pieces but the last are whole pages
  StagingServer server;
  for (size_t count : {size_t(1) << 20, (size_t(2) << 20) + 1, (size_t(17) << 20) + 4097}) {
    CAPTURE(count);
    const size_t before = server.session->total();
    REQUIRE(upload(random_bytes(count, 3)) == CUDA_SUCCESS);
    size_t next = 0;
    for (const SentFrame& frame : server.session->frames()) {
      if (frame.sequence <= before || frame.ordinal != uint32_t(SessionOrdinal::copy_region_to_device)) continue;
      frame.read<schema::CopyRegionToDevice>([&](auto copy) {
        REQUIRE(copy.getDestination() == kBase + next);
        REQUIRE(copy.getBytes() <= kStagingBlockBytes);
        REQUIRE(copy.getBytes() >= std::min(count, kStagingBlockBytes / 2 - kRounded));
        next += copy.getBytes();
      });
    }
    CHECK(next == count);
  }
}

TEST_CASE("In its block a piece begins far from where the program's bytes are in their page") {
  StagingServer server;
  constexpr size_t kPage = 4096, kFarBytes = 1024;
  const auto bytes = random_bytes((3u << 20) + kPage, 15);
  std::vector<std::byte> back(bytes.size());
  size_t seen = 0;
  for (size_t offset = 0; offset < kPage; offset += 101) {
    CAPTURE(offset);
    auto* to = &back[offset];
    const auto* from = &bytes[offset];
    REQUIRE(upload({from, size_t(3) << 20}) == CUDA_SUCCESS);
    REQUIRE(custom::cuMemcpyDtoH_v2(to, kBase, 3u << 20, false) == CUDA_SUCCESS);
    auto apart = [](uint64_t region, const void* memory) {
      const size_t distance = (region - reinterpret_cast<uint64_t>(memory)) % kPage;
      return std::min(distance, kPage - distance);
    };
    const auto frames = server.session->frames();
    for (; seen < frames.size(); ++seen) {
      const SentFrame& frame = frames[seen];
      if (frame.ordinal == uint32_t(SessionOrdinal::copy_region_to_device))
        frame.read<schema::CopyRegionToDevice>([&](auto copy) { CHECK(apart(copy.getRegion(), from) >= kFarBytes); });
      if (frame.ordinal == uint32_t(SessionOrdinal::copy_region_from_device))
        frame.read<schema::CopyRegionFromDevice>([&](auto copy) { CHECK(apart(copy.getRegion(), to) >= kFarBytes); });
    }
  }
  CHECK(std::memcmp(back.data(), bytes.data(), 3u << 20) == 0);
}

TEST_CASE("The source may be changed as soon as the call has returned, whatever the stream has got to do before") {
  StagingServer server;
  server.stands = true;
  auto bytes = random_bytes(5u << 20, 4);
  const auto as_they_were = bytes;
  REQUIRE(upload(bytes) == CUDA_SUCCESS);
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  CHECK(server.has(as_they_were));
  CHECK(server.session->in_flight_max() <= 1);  // blocks were made; the copy waited for nothing else
}

TEST_CASE("Few blocks carry a copy of any size where the device keeps up, and they are used again") {
  StagingServer server;
  const auto bytes = random_bytes(kDeviceBytes, 5);
  REQUIRE(upload(bytes) == CUDA_SUCCESS);
  CHECK(server.has(bytes));
  const size_t made = server.count(SessionOrdinal::region_share);
  CHECK(made <= kMemcpyJobsMax);
  std::vector<std::byte> back(bytes.size());
  REQUIRE(custom::cuMemcpyDtoH_v2(back.data(), kBase, back.size(), false) == CUDA_SUCCESS);
  CHECK(back == bytes);
  CHECK(server.count(SessionOrdinal::region_share) <= std::max(made, kFetchBlocksMax));
  REQUIRE(upload(bytes) == CUDA_SUCCESS);
  CHECK(server.count(SessionOrdinal::region_share) <= std::max(made, kFetchBlocksMax));
}

TEST_CASE("A copy that is waited for has few blocks made, however slow the device is") {
  StagingServer server;
  server.session->on_poll = [&server] { server.run(1); };
  server.session->on_flush = [] {};
  const auto bytes = random_bytes(kDeviceBytes, 16);
  REQUIRE(upload_blocking(bytes) == CUDA_SUCCESS);
  CHECK(server.has(bytes));
  CHECK(server.count(SessionOrdinal::region_share) == kStagingBlocksInTurn);
  // The program continues if it can.
  server.session->on_poll = [] {};
  REQUIRE(upload({bytes.data(), size_t(40) << 20}) == CUDA_SUCCESS);
  CHECK(server.count(SessionOrdinal::region_share) > kStagingBlocksInTurn);
}

TEST_CASE("Pieces that get no block because the stream is blocked follow the others over the connection") {
  StagingServer server;
  server.stands = true;
  const auto bytes = random_bytes(kDeviceBytes, 6);
  REQUIRE(upload(bytes) == CUDA_SUCCESS);
  CHECK(server.count(SessionOrdinal::region_share) == kStagingBlocksMax);
  const size_t staged = kStagingBlocksMax * piece_bytes(bytes.size());
  CHECK(server.staging().traffic().to_device_bytes == staged);
  CHECK(server.bulk_bytes() == bytes.size() - staged);
  CHECK(server.has(bytes));
  // From here on blocks are available again.
  server.stands = false;
  REQUIRE(upload(bytes) == CUDA_SUCCESS);
  CHECK(server.staging().traffic().to_device_bytes == staged + bytes.size());
}

TEST_CASE("The rest of a copy that finds some blocks is the bytes behind those that have gone") {
  constexpr size_t kMost = kStagingBlocksMax * kStagingBlockBytes, kBytes = 12u << 20, kBefore = kMost - kBytes / 2;
  StagingServer server;
  server.stands = true;
  REQUIRE(upload(random_bytes(kBefore, 20)) == CUDA_SUCCESS);
  const size_t before = server.staging().traffic().to_device_bytes;
  auto bytes = random_bytes(kBytes, 21);
  const auto as_they_were = bytes;
  REQUIRE(upload(bytes, kBefore) == CUDA_SUCCESS);
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  CHECK(server.staging().traffic().to_device_bytes > before);
  CHECK(server.staging().traffic().to_device_bytes < before + kBytes);
  CHECK(server.has(as_they_were, kBefore));
}

TEST_CASE("A copy without a stream counts as awaited where the host could see nothing of it, and else is waited for") {
  StagingServer server;
  bool told = true;
  size_t count = 3u << 20;
  SUBCASE("nothing to be seen") {}
  SUBCASE("larger than what is kept") {
    count = kCachedBlockBytesMax + 1;
    told = false;
  }
  SUBCASE("a function of the program is to be called") {
    REQUIRE(test::part<client::HostCallbacks>().add({}) != 0);
    told = false;
  }
  const auto bytes = random_bytes(count, 7);
  REQUIRE(upload_blocking(bytes) == CUDA_SUCCESS);
  if (!told) CHECK(std::memcmp(server.memory.data(), bytes.data(), bytes.size()) == 0);
  size_t pieces = 0, left = count;
  server.for_each<schema::CopyRegionToDevice>(SessionOrdinal::copy_region_to_device, [&](const auto& frame, auto copy) {
    ++pieces;
    left -= copy.getBytes();
    CHECK(copy.getBlocking() == (left == 0));
    CHECK((frame.kind == wire::FrameKind::called) == (left == 0 && !told));
  });
  CHECK(pieces == (count + kStagedPieceBytesMax - 1) / kStagedPieceBytesMax);
  CHECK(server.has(bytes));
}

TEST_CASE("Where staging cannot be had copies go as before, and the server is asked no more than once") {
  StagingServer server;
  size_t shares = 0;
  SUBCASE("another road") { server.session->road = "tcp"; }
  SUBCASE("refused") {
    server.session->answer_with(uint32_t(SessionOrdinal::region_share), CUDA_ERROR_OUT_OF_MEMORY);
    shares = 1;
  }
  SUBCASE("descriptors are not carried") { server.session->gives = false; }
  const auto bytes = random_bytes(5u << 20, 8);
  std::vector<std::byte> back(bytes.size());
  for (int times = 0; times < 2; ++times) {
    REQUIRE(upload(bytes) == CUDA_SUCCESS);
    CHECK(server.has(bytes));
    REQUIRE(custom::cuMemcpyDtoH_v2(back.data(), kBase, back.size(), false) == CUDA_SUCCESS);
    CHECK(back == bytes);
  }
  CHECK(server.count(SessionOrdinal::region_share) == shares);
  CHECK(server.count(SessionOrdinal::copy_region_to_device) == 0);
  CHECK(server.count(SessionOrdinal::copy_region_from_device) == 0);
  CHECK(server.staging().blocks() == 0);
}

TEST_CASE("Blocks that were lost with a connection are asked for again, but not without end") {
  StagingServer server;
  server.session->gives = false;
  const auto bytes = random_bytes(3u << 20, 17);
  unsigned copies = 1;
  SUBCASE("the next connection carries them") {}
  SUBCASE("none does") { copies = kStagingLossesMax; }
  for (unsigned number = 0; number < copies; ++number) REQUIRE(upload(bytes) == CUDA_SUCCESS);
  CHECK(server.has(bytes));
  CHECK(server.count(SessionOrdinal::copy_region_to_device) == 0);
  server.session->gives = true;
  REQUIRE(upload(bytes) == CUDA_SUCCESS);
  CHECK(server.has(bytes));
  CHECK((server.count(SessionOrdinal::copy_region_to_device) > 0) == (copies == 1));
}

TEST_CASE("Pinned memory that the program is refused comes before staging, of which no more is made then") {
  constexpr size_t kRoom = 8u << 20;
  StagingServer server;
  server.has_room_for(kRoom);
  const auto bytes = random_bytes(5u << 20, 18);
  server.stands = true;  // so that the copy has several made
  REQUIRE(upload(bytes) == CUDA_SUCCESS);
  REQUIRE(server.has(bytes));
  server.stands = false;
  const size_t made = server.staging().blocks();
  REQUIRE(made > 1);
  void* pinned = nullptr;
  SUBCASE("an allocation") {
    REQUIRE(custom::cuMemHostAlloc(&pinned, kRoom, 0) == CUDA_SUCCESS);
    CHECK(test::part<client::HostRegions>().holds(reinterpret_cast<uint64_t>(pinned), kRoom));
    CHECK(server.staging().blocks() == 0);
  }
  SUBCASE("memory that the device is to reach") {
    std::vector<std::byte> registered(kRoom);
    REQUIRE(custom::cuMemHostRegister_v2(registered.data(), kRoom, 0) == CUDA_SUCCESS);
    CUdeviceptr seen = 0;
    CHECK(custom::cuMemHostGetDevicePointer_v2(&seen, registered.data(), 0) == CUDA_SUCCESS);
    CHECK(server.staging().blocks() == 0);
    REQUIRE(custom::cuMemHostUnregister(registered.data()) == CUDA_SUCCESS);
  }
  SUBCASE("A request that would not fit without staging either is repeated once and then refused") {
    REQUIRE(custom::cuMemHostAlloc(&pinned, 2 * kRoom, 0) == CUDA_SUCCESS);  // it is mapped once the device uses it
    CHECK_FALSE(test::part<client::HostRegions>().holds(reinterpret_cast<uint64_t>(pinned), 1));
    const size_t asked = server.count(SessionOrdinal::region_share);
    CHECK(asked == made + 2);
    void* another = nullptr;
    REQUIRE(custom::cuMemHostAlloc(&another, 2 * kRoom, 0) == CUDA_SUCCESS);
    CHECK(server.count(SessionOrdinal::region_share) == asked + 1);
    REQUIRE(custom::cuMemFreeHost(another) == CUDA_SUCCESS);
  }
  const size_t asked = server.count(SessionOrdinal::region_share);
  REQUIRE(upload(bytes) == CUDA_SUCCESS);
  CHECK(server.has(bytes));
  CHECK(server.count(SessionOrdinal::region_share) == asked);
  if (pinned) REQUIRE(custom::cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

TEST_CASE("Short copies, and bytes that the server is to be asked for first, do not have staging made") {
  StagingServer server("auto");
  REQUIRE(upload(random_bytes(kStagingMadeForBytes - 1, 9)) == CUDA_SUCCESS);
  CHECK(server.count(SessionOrdinal::region_share) == 0);
  ServerFacts facts = server.session->facts();
  facts.chunks = ServerFacts::Chunks::plain;
  test::part<client::ChunkedUploads>().begin(facts);
  REQUIRE(upload(random_bytes(2u << 20, 9)) == CUDA_SUCCESS);
  CHECK(server.count(SessionOrdinal::region_share) == 0);
}

TEST_CASE("Blocks end with the context in which they were made, those in use when they come back") {
  StagingServer server;
  server.stands = true;
  const auto bytes = random_bytes(5u << 20, 10);
  REQUIRE(upload(bytes) == CUDA_SUCCESS);
  REQUIRE(server.staging().blocks() == 3);
  std::vector<std::byte> back(1u << 20);
  REQUIRE(custom::cuMemcpyDtoH_v2(back.data(), kBase, back.size(), false) == CUDA_SUCCESS);  // run()s the posted frames
  const size_t made = server.staging().blocks();
  REQUIRE(made == 4);
  server.stands = true;
  REQUIRE(upload({bytes.data(), size_t(1) << 20}) == CUDA_SUCCESS);  // one is in use
  CHECK(custom::cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK(server.count(SessionOrdinal::region_destroy) == made - 1);
  CHECK(server.staging().blocks() == 1);
  server.run();
  server.stands = false;
  server.make_current(0);
  address_map().insert({.base = kBase, .bytes = kDeviceBytes, .kind = RangeKind::device});
  REQUIRE(upload(bytes) == CUDA_SUCCESS);
  CHECK(server.has(bytes));
  CHECK(server.count(SessionOrdinal::region_destroy) == made);
}

TEST_CASE("A block comes back with the error of its copy, too: one whose context is gone is answered by nothing else") {
  StagingServer server;
  server.stands = true;
  REQUIRE(upload(random_bytes(1u << 20, 22)) == CUDA_SUCCESS);
  std::vector<uint64_t> sequences;
  server.for_each<schema::CopyRegionToDevice>(SessionOrdinal::copy_region_to_device,
                                              [&](const auto& frame, auto) { sequences.push_back(frame.sequence); });
  REQUIRE(sequences.size() == 1);
  const uint64_t returned = server.staging().returns();
  auto fail = [&](uint64_t sequence) {
    server.notify<schema::DeferredError>(wire::NoticeOrdinal::deferred_error, [&](auto error) {
      error.setResult(CUDA_ERROR_INVALID_CONTEXT);
      error.setSequence(sequence);
    });
  };
  fail(sequences[0] + 1);  // another frame's sequence
  CHECK(server.staging().returns() == returned);
  fail(sequences[0]);
  CHECK(server.staging().returns() == returned + 1);
}

TEST_CASE("Copies in a stream of another context than the current one go as before") {
  StagingServer server;
  CUstream stream = nullptr;
  REQUIRE(custom::cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  CUcontext other = nullptr;
  REQUIRE(custom::cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  const auto bytes = random_bytes(2u << 20, 11);
  REQUIRE(custom::cuMemcpyHtoDAsync_v2(kBase, bytes.data(), bytes.size(), stream, false) == CUDA_SUCCESS);
  CHECK(server.count(SessionOrdinal::copy_region_to_device) == 0);
  REQUIRE(upload(bytes) == CUDA_SUCCESS);
  CHECK(server.count(SessionOrdinal::copy_region_to_device) > 0);
  CHECK(server.has(bytes));
}

TEST_CASE("A copy from the device that fails ends with its error, and its blocks are there for the next one") {
  StagingServer server;
  server.fails_from = true;
  std::vector<std::byte> back(20u << 20);
  CHECK(custom::cuMemcpyDtoH_v2(back.data(), kBase, back.size(), false) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(server.count(SessionOrdinal::copy_region_from_device) == kFetchBlocksMax);
  CHECK(server.staging().blocks() == kFetchBlocksMax);
}

TEST_CASE("A copy to the device that fails is told of once, whichever of its pieces have failed") {
  StagingServer server;
  server.fails_to = true;
  const auto bytes = random_bytes(kCachedBlockBytesMax + (4u << 20), 14);
  CHECK(upload_blocking(bytes) == CUDA_ERROR_INVALID_VALUE);
  CHECK(server.count(SessionOrdinal::copy_region_to_device) > 1);
  server.fails_to = false;
  CHECK(upload_blocking(bytes) == CUDA_SUCCESS);
  CHECK(server.has(bytes));
}

TEST_CASE("A copy in a context that a fault has ended stops, and says so") {
  StagingServer server;
  server.stands = true;
  size_t sent = 0;
  server.session->before_frames([&](uint32_t ordinal) {
    if (ordinal == uint32_t(SessionOrdinal::copy_region_to_device) && ++sent == 3)
      t_context->sticky.store(CUDA_ERROR_ILLEGAL_ADDRESS);
  });
  CHECK(upload(random_bytes(40u << 20, 12)) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(sent <= 3 + kMemcpyJobsMax);
}

TEST_CASE("Copies of many threads share the blocks, and each gets its own bytes") {
  StagingServer server;
  constexpr unsigned kThreads = 4;
  constexpr size_t kPart = kDeviceBytes / kThreads;
  CUcontext context = as_cuda(t_context);
  std::vector<std::thread> threads;
  std::atomic<unsigned> wrong{0};
  for (unsigned number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      custom::cuCtxSetCurrent(context);
      std::mt19937 random(number);
      for (int round = 0; round < 6; ++round) {
        const auto bytes = random_bytes(1 + random() % kPart, number * 100 + round);
        std::vector<std::byte> back(bytes.size());
        wrong += upload(bytes, number * kPart) != CUDA_SUCCESS;
        wrong += custom::cuMemcpyDtoH_v2(back.data(), kBase + number * kPart, back.size(), false) != CUDA_SUCCESS;
        wrong += back != bytes;
      }
      t_context = nullptr;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(server.count(SessionOrdinal::region_share) <= kStagingBlocksMax);
}

TEST_CASE("When the session is over the blocks that nobody uses are gone, and copies end with what it ended with") {
  StagingServer server;
  REQUIRE(upload(random_bytes(4u << 20, 13)) == CUDA_SUCCESS);
  server.session->end_with(CUDA_ERROR_DEVICE_UNAVAILABLE);
  server.staging().ended(SessionEnd::lost);
  CHECK(server.staging().take({.session = server.session}, true) == SharedStaging::kNone);
  CHECK(upload(random_bytes(4u << 20, 13)) == CUDA_ERROR_DEVICE_UNAVAILABLE);
  server.staging().ended(SessionEnd::closed);
}

TEST_CASE("When the session is over blocks that the device had end at once, and those of a copy under way behind it") {
  StagingServer server;
  server.stands = true;
  REQUIRE(upload(random_bytes(4u << 20, 19)) == CUDA_SUCCESS);
  SharedStaging& staging = server.staging();
  const auto lent = server.regions();
  REQUIRE(lent.size() > 1);
  const Caller caller = enter(Needs::context);
  const int returned = staging.take(caller, true), unsent = staging.take(caller, true);
  REQUIRE(unsent != SharedStaging::kNone);
  std::byte* const places[] = {staging.data(returned), staging.data(unsent)};
  staging.ended(SessionEnd::lost);
  for (void* region : lent) CHECK_FALSE(is_mapped(reinterpret_cast<uint64_t>(region), 1));
  for (std::byte* place : places) std::memset(place, 1, kStagingBlockBytes);
  staging.give_back(returned);
  staging.lend(unsent, 1);
  for (std::byte* place : places) CHECK_FALSE(is_mapped(reinterpret_cast<uint64_t>(place), 1));
  staging.give_back(unsent);  // its frame was refused
  staging.has_read(1);
  CHECK(staging.blocks() == 0);
  server.session->end_with(CUDA_ERROR_DEVICE_UNAVAILABLE);
}

}  // namespace gpuwire::client
