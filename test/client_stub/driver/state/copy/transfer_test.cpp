#include "client_stub/driver/state/copy/transfer.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"

#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "client/forward.hpp"
#include "schema/api_ipc.capnp.h"
#include "test/client_stub/driver/state/memory/fixture.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"

namespace gpuwire::client {
namespace {

using test::SentFrame;
using wire::SessionOrdinal;

std::vector<std::byte> random_bytes(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(count);
  for (auto& byte : out) byte = std::byte(random());
  return out;
}

constexpr uint64_t kBase = 0x7000'0000'0000;

// 256 MiB of device memory at kBase.
struct MemoryProcess : test::DeviceProcess {
  explicit MemoryProcess(int devices = 1) : DeviceProcess(devices) {
    address_map().insert({.base = kBase, .bytes = 256u << 20, .kind = RangeKind::device});
  }
};

// Answers copies from "device memory" that begins at address `base`.
void serve_memory(MemoryProcess& process, uint64_t base, std::vector<std::byte>& memory) {
  process.session->serve(
      uint32_t(SessionOrdinal::copy_from_device),
      [&, base](const SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink& sink) {
        reply.initRoot<schema::Result>();
        frame.read<schema::CopyFromDevice>([&](auto copy) {
          REQUIRE(copy.getBytes() == sink.bytes);
          test::FakeSession::fill(sink, {memory.data() + (copy.getSource() - base), copy.getBytes()});
        });
      });
}

// Returns the bytes of all copies to the device since then, in order from kBase on; each copy must be posted.
std::vector<std::byte> posted_since(const MemoryProcess& process, size_t before) {
  std::vector<std::byte> bytes;
  auto frames = process.session->frames();
  for (size_t i = before; i < frames.size(); ++i) {
    if (frames[i].ordinal != uint32_t(SessionOrdinal::copy_to_device)) continue;
    CHECK(frames[i].kind == wire::FrameKind::posted);
    frames[i].read<schema::CopyToDevice>([&](auto copy) { CHECK(copy.getDestination() == kBase + bytes.size()); });
    bytes.insert(bytes.end(), frames[i].bulk.begin(), frames[i].bulk.end());
  }
  return bytes;
}

}  // namespace

TEST_CASE("Pieces cover a box exactly, in order, and none is larger than asked") {
  const unsigned seed = 11;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    BoxSize size{1 + random() % 40, 1 + random() % 12, 1 + random() % 6};
    uint64_t limit = 1 + random() % 300;
    std::vector<int> covered(size.bytes(), 0);
    CUresult result = for_each_piece(size, limit, [&](const BoxPiece& piece) {
      REQUIRE(piece.size.bytes() <= limit);
      REQUIRE(piece.size.bytes() > 0);
      for (uint64_t z = 0; z < piece.size.depth; ++z) {
        for (uint64_t y = 0; y < piece.size.height; ++y) {
          for (uint64_t x = 0; x < piece.size.width_bytes; ++x) {
            ++covered[((piece.slice + z) * size.height + piece.row + y) * size.width_bytes + piece.x_bytes + x];
          }
        }
      }
      return CUDA_SUCCESS;
    });
    REQUIRE(result == CUDA_SUCCESS);
    for (int count : covered) REQUIRE(count == 1);
  }
}

TEST_CASE("Rows are gathered and scattered as a loop over every byte does it, from any offset") {
  const unsigned seed = 12;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    uint64_t pitch = 16 + random() % 16, height = 4 + random() % 4;
    std::vector<std::byte> memory = random_bytes(pitch * height * 5, round);
    HostBox box{memory.data(), pitch, height, random() % 4, random() % 2, random() % 2};
    BoxPiece piece{random() % 2, random() % 2, random() % 3, {1 + random() % 8, 1 + random() % 2, 1 + random() % 2}};
    std::vector<std::byte> packed;
    for (uint64_t z = 0; z < piece.size.depth; ++z) {
      for (uint64_t y = 0; y < piece.size.height; ++y) {
        for (uint64_t x = 0; x < piece.size.width_bytes; ++x) {
          packed.push_back(memory[((box.z + piece.slice + z) * height + box.y + piece.row + y) * pitch + box.x_bytes +
                                  piece.x_bytes + x]);
        }
      }
    }
    size_t offset = random() % packed.size(), count = 1 + random() % (packed.size() - offset);
    std::vector<std::byte> out(count);
    gather_rows(box, piece, offset, out);
    REQUIRE(std::memcmp(out.data(), packed.data() + offset, count) == 0);

    std::vector<std::byte> changed = random_bytes(count, 1000 + round), copy = memory;
    HostBox target = box;
    target.base = copy.data();
    scatter_rows(target, piece, offset, changed);
    gather_rows(target, piece, offset, out);
    REQUIRE(out == changed);
    size_t differing = 0;
    for (size_t i = 0; i < memory.size(); ++i) differing += memory[i] != copy[i];
    REQUIRE(differing <= count);
  }
}

TEST_CASE("A small copy to the device is one posted frame with the bytes in it") {
  MemoryProcess process;
  auto bytes = random_bytes(4096, 1);
  CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
  SentFrame frame = process.session->newest();
  CHECK(frame.kind == wire::FrameKind::posted);
  CHECK(frame.ordinal == uint32_t(SessionOrdinal::copy_to_device));
  CHECK(frame.bulk == bytes);
  frame.read<schema::CopyToDevice>([](auto copy) {
    CHECK(copy.getDestination() == kBase);
    CHECK(copy.getStream() == 0);
  });
}

TEST_CASE("A copy of some megabytes to the device is posted with a copy of the bytes, and waits for nothing") {
  MemoryProcess process;
  for (size_t bytes_count : {wire::kPostedBulkBytesMax + 1, size_t(3) << 20, kCachedBlockBytesMax}) {
    CAPTURE(bytes_count);
    auto bytes = random_bytes(bytes_count, 5);
    const size_t before = process.session->total();
    CHECK(custom::cuMemcpyHtoDAsync_v2(kBase, bytes.data(), bytes.size(), nullptr, false) == CUDA_SUCCESS);
    CHECK(posted_since(process, before) == bytes);
  }
  CHECK(process.session->in_flight_max() == 0);
}

TEST_CASE("The first bytes of a copy of some megabytes are on their way before the last have been copied") {
  MemoryProcess process;
  auto bytes = random_bytes(3 * kKeptPieceBytes, 5);
  const auto last = bytes.end() - 1;
  const std::byte second = ~*last;
  bool changed = false;
  process.session->before_frames([&](uint32_t ordinal) {
    if (ordinal != uint32_t(SessionOrdinal::copy_to_device) || process.session->total() == 0) return;
    *last = second;
    changed = true;
  });
  const size_t before = process.session->total();
  CHECK(custom::cuMemcpyHtoDAsync_v2(kBase, bytes.data(), bytes.size(), nullptr, false) == CUDA_SUCCESS);
  CHECK(changed);
  CHECK(posted_since(process, before).back() == second);
}

TEST_CASE("A copy of some megabytes without a stream is posted with a copy of the bytes, too, and counts as awaited") {
  MemoryProcess process;
  for (size_t bytes_count : {wire::kPostedBulkBytesMax + 1, size_t(800) << 10, kCachedBlockBytesMax}) {
    CAPTURE(bytes_count);
    auto bytes = random_bytes(bytes_count, 7);
    const size_t before = process.session->total();
    CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
    CHECK(posted_since(process, before) == bytes);
    process.session->newest().read<schema::CopyToDevice>([](auto copy) { CHECK(copy.getBlocking()); });
  }
  CHECK(process.session->in_flight_max() == 0);
}

TEST_CASE("Rows of some megabytes without a stream are posted packed, too, and count as awaited") {
  MemoryProcess process;
  auto host = random_bytes(1024 * 1024, 8);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = 1024;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = kBase;
  copy.dstPitch = 2048;
  copy.WidthInBytes = 1000;
  copy.Height = 1024;
  REQUIRE(custom::cuMemcpy2D_v2(&copy, false) == CUDA_SUCCESS);
  SentFrame frame = process.session->newest();
  CHECK(frame.kind == wire::FrameKind::posted);
  REQUIRE(frame.bulk.size() == 1000 * 1024);
  for (size_t row : {0, 511, 1023})
    CHECK(std::memcmp(frame.bulk.data() + 1000 * row, host.data() + 1024 * row, 1000) == 0);
  frame.read<schema::Copy2D>([](auto box) { CHECK(box.getBlocking()); });
  CHECK(process.session->in_flight_max() == 0);
}

TEST_CASE("A copy without a stream is waited for where the host could see what comes before it, unless it is short") {
  MemoryProcess process;
  SUBCASE("an asynchronous copy into pinned memory is under way") {
    void* pinned = nullptr;
    REQUIRE(custom::cuMemAllocHost_v2(&pinned, 4096) == CUDA_SUCCESS);
    REQUIRE(custom::cuMemcpyDtoHAsync_v2(pinned, kBase, 4096, nullptr, false) == CUDA_SUCCESS);
  }
  SUBCASE("the device has pinned memory, and works") {
    void* pinned = nullptr;
    CUdeviceptr device = 0;
    REQUIRE(custom::cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS);
    REQUIRE(custom::cuMemHostGetDevicePointer_v2(&device, pinned, 0) == CUDA_SUCCESS);
    REQUIRE(test::part<client::HostRegions>().any());
    REQUIRE(custom::cuMemsetD8Async(kBase, 0, 16, nullptr, false) == CUDA_SUCCESS);
  }
  SUBCASE("a function of the program is to be called") { REQUIRE(test::part<client::HostCallbacks>().add({}) != 0); }
  for (size_t bytes_count : {kCopyBesideWorkBytesMax + 1, size_t(2) << 20}) {
    CAPTURE(bytes_count);
    auto bytes = random_bytes(bytes_count, 9);
    CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
    CHECK(process.session->newest().kind == wire::FrameKind::called);
  }
  auto bytes = random_bytes(kCopyBesideWorkBytesMax, 10);
  CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
  CHECK(process.session->newest().kind == wire::FrameKind::posted);
}

TEST_CASE("A query of work before an early copy is answered when the copy has arrived") {
  MemoryProcess process;
  constexpr uint32_t kStreamQuery = 2503, kEventQuery = 2704, kEventElapsedTime = 2706;
  auto bytes = random_bytes(size_t(1) << 20, 11);
  CUevent before = nullptr, also_before = nullptr, behind = nullptr;
  for (CUevent* event : {&before, &also_before, &behind}) REQUIRE(custom::cuEventCreate(event, 0) == CUDA_SUCCESS);
  for (CUevent event : {before, also_before}) REQUIRE(custom::cuEventRecord(event, nullptr, false) == CUDA_SUCCESS);
  process.session->answer_with(kEventQuery, CUDA_ERROR_NOT_READY);
  CHECK(custom::cuEventQuery(before) == CUDA_ERROR_NOT_READY);  // watched from here on
  // The server answers "ready" after its notice that the copy has arrived.
  bool arrived = false;
  auto ready_then = [&](const SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
    reply.initRoot<schema::Result>().setResult(arrived ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
  };
  for (uint32_t ordinal : {kEventQuery, kStreamQuery}) process.session->serve(ordinal, ready_then);
  process.session->serve(uint32_t(SessionOrdinal::copy_to_device),
                         [&](const SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
                           reply.initRoot<schema::Result>();
                           arrived = true;
                         });
  auto awaited = [&] { return process.session->count(uint32_t(SessionOrdinal::copy_to_device)); };
  CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
  SUBCASE("an event") { CHECK(custom::cuEventQuery(before) == CUDA_SUCCESS); }
  SUBCASE("the stream") { CHECK(custom::cuStreamQuery(nullptr, false) == CUDA_SUCCESS); }
  SUBCASE("the time between two events") {
    float milliseconds = 0;
    custom::cuEventElapsedTime_v2(&milliseconds, before, also_before);
    CHECK(process.session->newest().ordinal == kEventElapsedTime);
  }
  CHECK(arrived);
  CHECK(awaited() == 2);
  // Once for each copy, and not for later work.
  custom::cuEventQuery(also_before);
  REQUIRE(custom::cuEventRecord(behind, nullptr, false) == CUDA_SUCCESS);
  CHECK(custom::cuEventQuery(behind) == CUDA_SUCCESS);
  CHECK(awaited() == 2);
}

TEST_CASE(
    "A copy without a stream is waited for as soon as something is there that does not wait for the NULL stream") {
  struct Way {
    const char* name;
    std::function<CUresult()> begin;
  };
  CUstream stream = nullptr;
  CUcontext context = nullptr;
  CUipcMemHandle handle{};
  const Way ways[] = {
      {"a stream", [&] { return custom::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING); }},
      {"a stream with a priority",
       [&] { return custom::cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -1); }},
      {"a context", [&] { return custom::cuDevicePrimaryCtxRetain(&context, 1); }},
      {"another process", [&] { return custom::cuIpcGetMemHandle(&handle, kBase); }},
  };
  for (size_t number = 0; number < 2 * std::size(ways); ++number) {
    const Way& way = ways[number / 2];
    const size_t bytes_count = number % 2 ? size_t(2) << 20 : 4096;
    CAPTURE(way.name);
    CAPTURE(bytes_count);
    MemoryProcess process(2);
    process.session->serve(forward_ordinal::cuIpcGetMemHandle,
                           [](const SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
                             reply.initRoot<schema::CuIpcGetMemHandleResults>().initPHandle(sizeof(CUipcMemHandle));
                           });
    auto bytes = random_bytes(bytes_count, 3);
    CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
    const size_t before = process.session->total();
    CHECK(way.begin() == CUDA_SUCCESS);
    // A copy without bytes waits for the posted copies.
    size_t awaited = 0;
    auto frames = process.session->frames();
    for (size_t i = before; i < frames.size(); ++i) {
      if (frames[i].ordinal != uint32_t(SessionOrdinal::copy_to_device)) continue;
      ++awaited;
      CHECK(frames[i].kind == wire::FrameKind::called);
      CHECK(frames[i].bulk.empty());
      CHECK(frames[i].context == frames[before - 1].context);
      frames[i].read<schema::CopyToDevice>([](auto copy) { CHECK(copy.getBlocking()); });
    }
    CHECK(awaited == 1);
    // Later copies wait by themselves.
    CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
    CHECK(process.session->newest().kind == wire::FrameKind::called);
    // After the capture there is nothing to wait for.
    size_t copies = process.session->count(uint32_t(SessionOrdinal::copy_to_device));
    CHECK(custom::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(process.session->count(uint32_t(SessionOrdinal::copy_to_device)) == copies);
  }
}

TEST_CASE("A stream that waits for the NULL stream, or no copy before it, makes nobody wait") {
  MemoryProcess process;
  auto bytes = random_bytes(4096, 4);
  CUstream stream = nullptr;
  SUBCASE("the stream waits for the NULL stream") {
    CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
    CHECK(custom::cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
    CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
    CHECK(process.session->newest().kind == wire::FrameKind::posted);
  }
  SUBCASE("there was no copy") {
    CHECK(custom::cuMemcpyHtoDAsync_v2(kBase, bytes.data(), bytes.size(), nullptr, false) == CUDA_SUCCESS);
    size_t copies = process.session->count(uint32_t(SessionOrdinal::copy_to_device));
    CHECK(custom::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(process.session->count(uint32_t(SessionOrdinal::copy_to_device)) == copies);
  }
}

TEST_CASE("Where the server has every stream wait for them, copies are posted beside streams of any kind") {
  MemoryProcess process;
  process.session->facts().orders_uploads = true;
  auto bytes = random_bytes(size_t(2) << 20, 4);
  CUstream stream = nullptr;
  CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
  CHECK(process.session->newest().kind == wire::FrameKind::posted);
  CHECK(process.session->in_flight_max() == 0);
}

namespace {

// Returns whether the frame reports the copies before it as done.
bool tells_of_copies(const SentFrame& frame) {
  bool blocking = false;
  if (frame.ordinal != uint32_t(SessionOrdinal::copy_to_device) || !frame.bulk.empty()) return false;
  frame.read<schema::CopyToDevice>([&](auto copy) { blocking = copy.getBlocking(); });
  return blocking && frame.kind == wire::FrameKind::posted;
}

}  // namespace

TEST_CASE("A wait for the NULL stream behind copies alone returns at once, and the server is notified") {
  MemoryProcess process;
  process.session->facts().orders_uploads = true;
  auto bytes = random_bytes(size_t(1) << 20, 12);
  SUBCASE("from the beginning") {}
  SUBCASE("behind work that is known to be done, beside a stream that does not wait for the NULL stream") {
    CUstream stream = nullptr;
    REQUIRE(custom::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    serve_memory(process, kBase, bytes);
    REQUIRE(custom::cuMemsetD8Async(kBase, 0, 16, nullptr, false) == CUDA_SUCCESS);
    std::byte seen[16];
    REQUIRE(custom::cuMemcpyDtoH_v2(seen, kBase, sizeof seen, false) == CUDA_SUCCESS);
  }
  const size_t waited = process.session->in_flight_max();
  REQUIRE(custom::cuMemcpyHtoDAsync_v2(kBase, bytes.data(), bytes.size(), nullptr, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuStreamSynchronize(nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->in_flight_max() == waited);
  CHECK(tells_of_copies(process.session->newest()));
  // Only once: the next wait finds nothing new, nor does a wait after a copy that has reported itself.
  size_t sent = process.session->total();
  CHECK(custom::cuStreamSynchronize(nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->total() == sent);
  REQUIRE(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
  sent = process.session->total();
  CHECK(custom::cuStreamSynchronize(nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->total() == sent);
}

TEST_CASE("A wait for the NULL stream behind work other than early copies waits for that work") {
  MemoryProcess process;
  constexpr uint32_t kStreamSynchronize = 2504;
  process.session->facts().orders_uploads = true;
  auto bytes = random_bytes(4096, 13);
  CUstream stream = nullptr;
  SUBCASE("a fill") { REQUIRE(custom::cuMemsetD8Async(kBase, 0, 16, nullptr, false) == CUDA_SUCCESS); }
  SUBCASE("a fill in a stream that does not wait for the NULL stream") {
    REQUIRE(custom::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(custom::cuMemsetD8Async(kBase, 0, 16, stream, false) == CUDA_SUCCESS);
    stream = nullptr;
  }
  SUBCASE("a copy whose source must stay") {
    void* pinned = nullptr;
    REQUIRE(custom::cuMemAllocHost_v2(&pinned, 4096) == CUDA_SUCCESS);
    REQUIRE(custom::cuMemcpyHtoDAsync_v2(kBase, pinned, 4096, nullptr, false) == CUDA_SUCCESS);
  }
  SUBCASE("a copy in another stream") {
    REQUIRE(custom::cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
    REQUIRE(custom::cuMemcpyHtoDAsync_v2(kBase, bytes.data(), bytes.size(), stream, false) == CUDA_SUCCESS);
    stream = nullptr;
  }
  SUBCASE("the wait is for another stream") {
    REQUIRE(custom::cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
    REQUIRE(custom::cuMemcpyHtoDAsync_v2(kBase, bytes.data(), bytes.size(), stream, false) == CUDA_SUCCESS);
  }
  SUBCASE("the server does not have every stream wait for copies") { process.session->facts().orders_uploads = false; }
  REQUIRE(custom::cuMemcpyHtoDAsync_v2(kBase, bytes.data(), bytes.size(), nullptr, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuStreamSynchronize(stream, false) == CUDA_SUCCESS);
  CHECK(process.session->newest().ordinal == kStreamSynchronize);
  CHECK(process.session->newest().kind == wire::FrameKind::called);
}

TEST_CASE("A copy that was posted while another thread made a stream waits for itself") {
  MemoryProcess process;
  size_t bytes_count = 4096;
  SUBCASE("a short one") {}
  SUBCASE("one of two megabytes") { bytes_count = size_t(2) << 20; }
  auto bytes = random_bytes(bytes_count, 5);
  // The stream is made between the decision to post the copy and the begin of its frame.
  bool made = false;
  process.session->before_frames([&](uint32_t ordinal) {
    if (made || ordinal != uint32_t(SessionOrdinal::copy_to_device)) return;
    made = true;
    CUstream stream = nullptr;
    CHECK(custom::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  });
  CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
  SentFrame frame = process.session->newest();
  CHECK(frame.kind == wire::FrameKind::called);
  CHECK(frame.bulk.empty());
}

TEST_CASE("A copy beyond what the session keeps for its server waits until it has been sent") {
  MemoryProcess process;
  std::vector<std::shared_ptr<std::byte>> unacknowledged;
  while (auto block = process.session->keep(kCachedBlockBytesMax)) unacknowledged.push_back(std::move(block));
  auto bytes = random_bytes(size_t(1) << 20, 6);
  CHECK(custom::cuMemcpyHtoDAsync_v2(kBase, bytes.data(), bytes.size(), nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->newest().kind == wire::FrameKind::called);
  CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
  CHECK(process.session->newest().kind == wire::FrameKind::called);
  unacknowledged.pop_back();
  CHECK(custom::cuMemcpyHtoDAsync_v2(kBase, bytes.data(), bytes.size(), nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->newest().kind == wire::FrameKind::posted);
}

TEST_CASE("A large copy to the device is cut into pieces that are all sent before the first answer is waited for") {
  MemoryProcess process;
  auto bytes = random_bytes(2 * kPieceBytes + 12345, 2);
  CHECK(custom::cuMemcpyHtoD_v2(kBase, bytes.data(), bytes.size(), false) == CUDA_SUCCESS);
  std::vector<std::byte> arrived;
  int blocking = 0;
  for (const SentFrame& frame : process.session->frames()) {
    if (frame.ordinal != uint32_t(SessionOrdinal::copy_to_device)) continue;
    CHECK(frame.kind == wire::FrameKind::called);
    CHECK(frame.bulk.size() <= kPieceBytes);
    frame.read<schema::CopyToDevice>([&](auto copy) {
      CHECK(copy.getDestination() == kBase + arrived.size());
      blocking += copy.getBlocking();
    });
    arrived.insert(arrived.end(), frame.bulk.begin(), frame.bulk.end());
  }
  CHECK(arrived == bytes);
  CHECK(process.session->in_flight_max() == 3);
  CHECK(blocking == 1);
}

TEST_CASE("A large copy from the device asks for all pieces before it waits for the first") {
  MemoryProcess process;
  auto memory = random_bytes(3 * kPieceBytes + 77, 3);
  serve_memory(process, kBase, memory);
  std::vector<std::byte> out(memory.size());
  CHECK(custom::cuMemcpyDtoH_v2(out.data(), kBase, out.size(), false) == CUDA_SUCCESS);
  CHECK(out == memory);
  CHECK(process.session->in_flight_max() == 4);
}

TEST_CASE("The failure of one piece is the result of the copy, and the other pieces are still waited for") {
  MemoryProcess process;
  std::vector<std::byte> out(3 * kPieceBytes);
  int asked = 0;
  process.session->serve(
      uint32_t(SessionOrdinal::copy_from_device), [&](const SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
        reply.initRoot<schema::Result>().setResult(++asked == 2 ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS);
      });
  CHECK(custom::cuMemcpyDtoH_v2(out.data(), kBase, out.size(), false) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(asked == 3);
}

TEST_CASE("An asynchronous copy into pinned memory is posted, into other memory it waits") {
  MemoryProcess process;
  void* pinned = nullptr;
  REQUIRE(custom::cuMemAllocHost_v2(&pinned, 8192) == CUDA_SUCCESS);
  REQUIRE(custom::cuMemcpyDtoHAsync_v2(pinned, kBase, 8192, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->newest().kind == wire::FrameKind::posted);
  std::vector<std::byte> memory = random_bytes(8192, 4), out(8192);
  serve_memory(process, kBase, memory);
  REQUIRE(custom::cuMemcpyDtoHAsync_v2(out.data(), kBase, 8192, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->newest().kind == wire::FrameKind::called);
  CHECK(out == memory);
}

TEST_CASE(
    "A large asynchronous copy out of pinned memory is posted in pieces, and freeing the memory lets them be sent "
    "first") {
  MemoryProcess process;
  constexpr size_t kBytes = (40u << 20) + 3;
  void* pinned = nullptr;
  REQUIRE(custom::cuMemAllocHost_v2(&pinned, kBytes) == CUDA_SUCCESS);
  CHECK(custom::cuMemcpyHtoDAsync_v2(kBase, pinned, kBytes, nullptr, false) == CUDA_SUCCESS);
  size_t sent = 0;
  for (const SentFrame& frame : process.session->frames()) {
    if (frame.ordinal != uint32_t(SessionOrdinal::copy_to_device)) continue;
    CHECK(frame.kind == wire::FrameKind::posted);
    CHECK(frame.bulk.size() <= kPieceBytes);
    frame.read<schema::CopyToDevice>([&](auto copy) { CHECK(copy.getDestination() == kBase + sent); });
    sent += frame.bulk.size();
  }
  CHECK(sent == kBytes);
  CHECK(process.session->sendings_finished == 0);
  CHECK(custom::cuMemFreeHost(pinned) == CUDA_SUCCESS);
  CHECK(process.session->sendings_finished == 1);
}

TEST_CASE("Pinned memory that a copy is still writing to is not sent before the copy is done") {
  MemoryProcess process;
  void* pinned = nullptr;
  REQUIRE(custom::cuMemAllocHost_v2(&pinned, 1u << 20) == CUDA_SUCCESS);  // too large to become a host region by itself
  REQUIRE(custom::cuMemcpyDtoHAsync_v2(pinned, kBase, 4096, nullptr, false) == CUDA_SUCCESS);
  size_t before = process.session->total();
  REQUIRE(custom::cuMemcpyHtoDAsync_v2(kBase, static_cast<std::byte*>(pinned) + 4096, 4096, nullptr, false) ==
          CUDA_SUCCESS);
  CHECK(process.session->total() == before + 1);
  REQUIRE(custom::cuMemcpyHtoDAsync_v2(kBase, pinned, 4096, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->total() == before + 3);
  CHECK(process.session->frames()[before + 1].kind == wire::FrameKind::called);
}

TEST_CASE("The unified copy finds out by the addresses which way it goes") {
  MemoryProcess process;
  address_map().insert({.base = kBase, .bytes = 1 << 20, .kind = RangeKind::device});
  std::vector<std::byte> memory = random_bytes(1 << 20, 5), host(4096), other(4096);
  serve_memory(process, kBase, memory);
  auto address = [](std::vector<std::byte>& bytes) { return CUdeviceptr(reinterpret_cast<uint64_t>(bytes.data())); };
  REQUIRE(custom::cuMemcpy(kBase, address(host), 4096, false) == CUDA_SUCCESS);
  CHECK(process.session->newest().ordinal == uint32_t(SessionOrdinal::copy_to_device));
  REQUIRE(custom::cuMemcpy(address(host), kBase, 4096, false) == CUDA_SUCCESS);
  CHECK(process.session->newest().ordinal == uint32_t(SessionOrdinal::copy_from_device));
  CHECK(std::memcmp(host.data(), memory.data(), 4096) == 0);
  REQUIRE(custom::cuMemcpy(kBase, kBase + 8192, 4096, false) == CUDA_SUCCESS);
  CHECK(process.session->newest().ordinal == test::kMemcpyDtoD);
  REQUIRE(custom::cuMemcpy(address(other), address(host), 4096, false) == CUDA_SUCCESS);
  CHECK(other == host);
}

TEST_CASE("Copies out of bounds, to nowhere and of host memory as device memory are invalid values") {
  MemoryProcess process;
  address_map().insert({.base = kBase, .bytes = 4096, .kind = RangeKind::device});
  std::vector<std::byte> host(8192);
  void* pinned = nullptr;
  REQUIRE(custom::cuMemAllocHost_v2(&pinned, 1u << 20) == CUDA_SUCCESS);
  process.session->answer_with(uint32_t(SessionOrdinal::region_create), CUDA_ERROR_NOT_SUPPORTED);
  CHECK(custom::cuMemcpyHtoD_v2(reinterpret_cast<uint64_t>(pinned), host.data(), 1, false) == CUDA_ERROR_INVALID_VALUE);
  size_t before = process.session->total();
  CHECK(custom::cuMemcpyHtoD_v2(kBase, host.data(), 4097, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemcpyHtoD_v2(kBase + 4090, host.data(), 7, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemcpyDtoH_v2(host.data(), kBase, 4097, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemcpyHtoD_v2(0, host.data(), 1, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemcpyDtoDAsync_v2(kBase, kBase + 4000, 97, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemcpyHtoD_v2(kBase, nullptr, 1, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemcpyHtoDAsync_v2(kBase, host.data(), 4, reinterpret_cast<CUstream>(uintptr_t(0x1234)), false) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(custom::cuMemcpyHtoD_v2(kBase, host.data(), 0, false) == CUDA_SUCCESS);
  CHECK(process.session->total() == before);
}

TEST_CASE("The server's driver judges work at addresses that the client does not know, in the call itself") {
  MemoryProcess process;
  std::vector<std::byte> host(16);
  auto asks = [&](CUresult result) {
    CHECK(result == CUDA_SUCCESS);
    return process.session->newest().ordinal == uint32_t(SessionOrdinal::ping);
  };
  CHECK(asks(custom::cuMemcpyHtoD_v2(0x40, host.data(), 16, false)));
  CHECK(asks(custom::cuMemsetD8Async(0x40, 0, 16, nullptr, false)));
  CHECK(asks(custom::cuMemcpyDtoDAsync_v2(kBase, 0x40, 16, nullptr, false)));
  CHECK_FALSE(asks(custom::cuMemcpyDtoDAsync_v2(kBase, kBase + 64, 16, nullptr, false)));
  process.session->answer_with(uint32_t(SessionOrdinal::ping), CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemcpyHtoD_v2(0x40, host.data(), 16, false) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("A copy between contexts that is plainly right is posted, and what is wrong with one is told by the call") {
  test::DeviceProcess process(2);
  CUcontext mine = nullptr, other = nullptr;
  REQUIRE(custom::cuCtxGetCurrent(&mine) == CUDA_SUCCESS);
  REQUIRE(custom::cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  constexpr uint64_t kThere = kBase + (1u << 20);
  address_map().insert({.base = kBase, .bytes = 4096, .kind = RangeKind::device, .device = 0});
  address_map().insert({.base = kThere, .bytes = 4096, .kind = RangeKind::device, .device = 1});
  auto copy = [&](uint64_t to, CUcontext to_context, uint64_t from, CUcontext from_context, size_t bytes) {
    return custom::cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, nullptr, false);
  };
  size_t before = process.session->total();
  CHECK(copy(kThere, other, kBase, mine, 4096) == CUDA_SUCCESS);
  CHECK(process.session->total() == before + 1);
  CHECK(process.session->newest().kind == wire::FrameKind::posted);

  CHECK(copy(kThere, other, kBase, mine, 4097) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(0, other, kBase, mine, 16) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(kThere, other, kBase, reinterpret_cast<CUcontext>(uintptr_t(0x1234)), 16) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(copy(kThere, nullptr, kBase, mine, 16) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(process.session->total() == before + 1);

  // The server's driver judges the memory's device and unknown addresses.
  process.session->answer_with(uint32_t(SessionOrdinal::ping), CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(kThere, mine, kBase, mine, 16) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(kThere, other, 0x40, mine, 16) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(custom::cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS);
  process.session->answer_with(uint32_t(SessionOrdinal::ping), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(copy(kBase, mine, kBase + 64, other, 16) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_CASE("A fill outside of an allocation, or not aligned to its element, is an invalid value found here") {
  MemoryProcess process;
  address_map().insert({.base = kBase, .bytes = 4096, .kind = RangeKind::device});
  size_t before = process.session->total();
  CHECK(custom::cuMemsetD8Async(0, 0, 16, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemsetD8Async(kBase, 0, 4097, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemsetD32Async(kBase, 0, SIZE_MAX / 2, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemsetD32Async(kBase + 2, 0, 1, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemsetD2D8Async(kBase, 512, 0, 513, 2, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemsetD2D8Async(kBase, 512, 0, 1, 10, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemsetD2D8Async(kBase, SIZE_MAX / 2, 0, 1, 4, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemsetD8Async(kBase, 0, 0, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->total() == before);
  CHECK(custom::cuMemsetD2D8Async(kBase, 512, 0, 512, 8, nullptr, false) == CUDA_SUCCESS);
  CHECK(custom::cuMemsetD32Async(kBase, 0, 1024, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->newest().kind == wire::FrameKind::posted);
  CHECK(process.session->total() == before + 2);
}

TEST_CASE("A pitched copy to the device carries the rows packed, and says where they belong") {
  MemoryProcess process;
  auto host = random_bytes(64 * 8, 6);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = 64;
  copy.srcXInBytes = 4;
  copy.srcY = 1;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = kBase;
  copy.dstPitch = 512;
  copy.WidthInBytes = 20;
  copy.Height = 5;
  REQUIRE(custom::cuMemcpy2D_v2(&copy, false) == CUDA_SUCCESS);
  SentFrame frame = process.session->newest();
  REQUIRE(frame.ordinal == uint32_t(SessionOrdinal::copy_2d_to_device));
  REQUIRE(frame.bulk.size() == 100);
  for (size_t row = 0; row < 5; ++row)
    CHECK(std::memcmp(frame.bulk.data() + 20 * row, host.data() + (row + 1) * 64 + 4, 20) == 0);
  frame.read<schema::Copy2D>([](auto box) {
    CHECK(box.getDevice() == kBase);
    CHECK(box.getPitchBytes() == 512);
    CHECK(box.getWidthBytes() == 20);
    CHECK(box.getHeight() == 5);
    CHECK(box.getDepth() == 1);
  });
}

TEST_CASE("A pitched copy from the device puts each row where it belongs and touches nothing between") {
  MemoryProcess process;
  auto rows = random_bytes(20 * 5, 7);
  process.session->serve(uint32_t(SessionOrdinal::copy_2d_from_device),
                         [&](const SentFrame&, capnp::MessageBuilder& reply, const BulkSink& sink) {
                           reply.initRoot<schema::Result>();
                           test::FakeSession::fill(sink, rows);
                         });
  std::vector<std::byte> host(64 * 8);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = kBase;
  copy.srcPitch = 512;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = host.data();
  copy.dstPitch = 64;
  copy.dstXInBytes = 4;
  copy.dstY = 1;
  copy.WidthInBytes = 20;
  copy.Height = 5;
  REQUIRE(custom::cuMemcpy2D_v2(&copy, false) == CUDA_SUCCESS);
  std::vector<std::byte> expected(64 * 8);
  for (size_t row = 0; row < 5; ++row) std::memcpy(expected.data() + (row + 1) * 64 + 4, rows.data() + 20 * row, 20);
  CHECK(host == expected);
}

TEST_CASE("A pitch smaller than a row is an invalid value") {
  MemoryProcess process;
  std::vector<std::byte> host(4096);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = 10;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = kBase;
  copy.dstPitch = 512;
  copy.WidthInBytes = 20;
  copy.Height = 2;
  CHECK(custom::cuMemcpy2D_v2(&copy, false) == CUDA_ERROR_INVALID_VALUE);
  copy.srcPitch = 20;
  copy.srcXInBytes = 1;
  CHECK(custom::cuMemcpy2D_v2(&copy, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemcpy2D_v2(nullptr, false) == CUDA_ERROR_INVALID_VALUE);
}

}  // namespace gpuwire::client
