#include "client_stub/driver/memory/kept_memory.hpp"

#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "client/forward.hpp"
#include "client_stub/driver/stream/capture.hpp"
#include "schema/api_memory.capnp.h"
#include "schema/api_pool.capnp.h"
#include "schema/session.capnp.h"
#include "test/client_stub/driver/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

using Clock = KeptBlock::Clock;
using namespace std::chrono_literals;

constexpr uint64_t kBytes = 1 << 20;
constexpr uint32_t kMemGetInfo = 1804, kMemAllocAsync = 2400, kMemAllocFromPoolAsync = 2401, kMemFreeAsync = 2402;
const uint32_t kAwaitRest = uint32_t(wire::SessionOrdinal::await_rest);
const uint32_t kKeepingMemory = uint32_t(wire::SessionOrdinal::keeping_memory);

KeptBlock block(uint64_t base, uint64_t bytes, Clock::time_point since = {}) {
  return {{.base = base, .bytes = bytes}, {.context = 1, .bytes = bytes}, since};
}

// A program whose freed memory is kept, with a server that gives other addresses each time.
struct Keeping : test::DeviceProcess {
  explicit Keeping(const char* wish = "64MiB") : DeviceProcess(1, wish) {
    void* room = mmap(nullptr, kRoomBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(room != MAP_FAILED);
    munmap(room, kRoomBytes);
    next = reinterpret_cast<uint64_t>(room);
    session->answer(test::kMemAlloc, [this](capnp::MessageBuilder& reply) {
      reply.initRoot<schema::CuMemAllocV2Results>().setDptr(new_address());
    });
    session->answer(kMemAllocAsync, [this](capnp::MessageBuilder& reply) {
      reply.initRoot<schema::CuMemAllocAsyncResults>().setDptr(new_address());
    });
    session->answer(kMemAllocFromPoolAsync, [this](capnp::MessageBuilder& reply) {
      reply.initRoot<schema::CuMemAllocFromPoolAsyncResults>().setDptr(new_address());
    });
  }

  CUdeviceptr allocate(size_t bytes = kBytes) {
    CUdeviceptr address = 0;
    REQUIRE(hand::cuMemAlloc_v2(&address, bytes) == CUDA_SUCCESS);
    return address;
  }
  CUdeviceptr allocate_on(CUstream stream, size_t bytes = kBytes) {
    CUdeviceptr address = 0;
    REQUIRE(hand::cuMemAllocAsync(&address, bytes, stream, false) == CUDA_SUCCESS);
    return address;
  }
  static void free(CUdeviceptr address) { REQUIRE(hand::cuMemFree_v2(address) == CUDA_SUCCESS); }
  static void free_on(CUdeviceptr address, CUstream stream) {
    REQUIRE(hand::cuMemFreeAsync(address, stream, false) == CUDA_SUCCESS);
  }
  static CUstream new_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    REQUIRE(hand::cuStreamCreate(&stream, flags) == CUDA_SUCCESS);
    return stream;
  }
  static KeptMemory& kept() { return test::server_session().kept_memory; }
  // The ordinals of what was sent since the first `before` frames.
  std::vector<uint32_t> sent_since(size_t before) const {
    std::vector<uint32_t> ordinals;
    for (const test::SentFrame& frame : session->frames()) ordinals.push_back(frame.ordinal);
    return {ordinals.begin() + ptrdiff_t(before), ordinals.end()};
  }

 private:
  static constexpr uint64_t kRoomBytes = uint64_t{4} << 30;
  uint64_t new_address() { return next += 64u << 20; }
  uint64_t next = 0;
};

}  // namespace

TEST_CASE("Of kept blocks the newest that is of the right use is taken, and each once") {
  KeptBlocks blocks(1000);
  REQUIRE(blocks.add(block(0x1000, 100)));
  REQUIRE(blocks.add(block(0x2000, 100)));
  REQUIRE(blocks.add(block(0x3000, 50)));
  CHECK(blocks.bytes() == 250);
  CHECK(blocks.holds(0x1063));
  CHECK_FALSE(blocks.holds(0x1064));
  CHECK_FALSE(blocks.take({.context = 2, .bytes = 100}));
  CHECK_FALSE(blocks.take({.kind = RangeKind::pool, .context = 1, .bytes = 100}));
  CHECK(blocks.take({.context = 1, .bytes = 100})->base == 0x2000);
  CHECK(blocks.take({.context = 1, .bytes = 100})->base == 0x1000);
  CHECK_FALSE(blocks.take({.context = 1, .bytes = 100}));
  CHECK(blocks.low() == 0x3000);
  CHECK(blocks.high() == 0x3000 + 50);
}

TEST_CASE("Kept blocks have no more bytes together than they may, and are no more than so many") {
  KeptBlocks blocks(1 << 20);
  CHECK_FALSE(blocks.add(block(0x1000, (1 << 20) + 1)));
  REQUIRE(blocks.add(block(0x1000, 1 << 20)));
  CHECK_FALSE(blocks.add(block(0x200000, 1)));
  CHECK(blocks.take({.context = 1, .bytes = 1 << 20}));
  for (uint64_t i = 0; i < KeptBlocks::kBlocksMax; ++i) REQUIRE(blocks.add(block(0x1000 + 16 * i, 16)));
  CHECK_FALSE(blocks.add(block(0x1000 + 16 * KeptBlocks::kBlocksMax, 16)));
  CHECK(blocks.take_if([](const KeptBlock& each) { return each.range.base < 0x1000 + 160; }).size() == 10);
  CHECK(blocks.size() == KeptBlocks::kBlocksMax - 10);
}

TEST_CASE("How much is kept is a size as all sizes are written") {
  CHECK(KeptMemory::bytes_wanted("0") == 0);
  CHECK(KeptMemory::bytes_wanted("3KiB") == 3 << 10);
  CHECK(KeptMemory::bytes_wanted("64MiB") == 64 << 20);
  CHECK(KeptMemory::bytes_wanted("2.5GB") == 2'500'000'000);
  for (const char* none : {static_cast<const char*>(nullptr), "", "4096", "64M", "M", "1X", "-1", "99999999999GiB"})
    CHECK(KeptMemory::bytes_wanted(none) == 0);
}

TEST_CASE("Freed memory is handed out again without a word to the server, under another buffer id") {
  Keeping program;
  const CUdeviceptr first = program.allocate();
  uint64_t id = 0, again_id = 0;
  REQUIRE(hand::cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, first) == CUDA_SUCCESS);
  size_t before = program.session->total();
  program.free(first);
  CHECK(program.sent_since(before) == std::vector{kAwaitRest, kKeepingMemory});
  before = program.session->total();
  CHECK(program.allocate() == first);
  CHECK(program.session->total() == before);
  REQUIRE(hand::cuPointerGetAttribute(&again_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, first) == CUDA_SUCCESS);
  CHECK(again_id != id);
}

TEST_CASE("A loop that allocates and frees sends nothing, and one that works in between a frame for each free") {
  Keeping program;
  program.free(program.allocate());
  program.free(program.allocate());
  size_t before = program.session->total();
  for (int i = 0; i < 10; ++i) program.free(program.allocate());
  CHECK(program.session->total() == before);
  for (int i = 0; i < 3; ++i) {
    const CUdeviceptr memory = program.allocate();
    REQUIRE(hand::cuMemsetD8Async(memory, 1, kBytes, nullptr, false) == CUDA_SUCCESS);
    before = program.session->total();
    program.free(memory);
    CHECK(program.sent_since(before) == std::vector{kAwaitRest});
  }
}

TEST_CASE("An address of freed memory is unknown, wherever it is asked about") {
  Keeping program;
  const CUdeviceptr memory = program.allocate();
  program.free(memory);
  CUdeviceptr base = 0;
  uint64_t value = 0;
  CHECK(hand::cuMemGetAddressRange_v2(&base, nullptr, memory) == CUDA_ERROR_NOT_FOUND);
  CHECK(hand::cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_BUFFER_ID, memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(hand::cuMemFree_v2(memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(hand::cuMemFreeAsync(memory, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(program.session->count(test::kMemFree) == 0);
}

TEST_CASE("Before the server's driver is to judge an address of freed memory, it is freed there") {
  Keeping program;
  const CUdeviceptr memory = program.allocate();
  auto given_back_by = [&](auto&& act) {
    program.free(program.allocate());
    const size_t frees = program.session->count(test::kMemFree), before = program.session->total();
    act();
    CHECK(program.session->count(test::kMemFree) == frees + 1);
    CHECK(program.sent_since(before).front() == test::kMemFree);
  };
  program.free(memory);
  given_back_by([&] { CHECK(hand::cuMemsetD8Async(memory + 5, 1, 4, nullptr, false) == CUDA_SUCCESS); });
  const CUdeviceptr other = program.allocate();
  program.free(other);
  given_back_by([&] {
    const uint64_t parameters[] = {1, other + kBytes - 1};
    note_addresses_in(enter(Needs::context), std::as_bytes(std::span(parameters)));
  });
}

TEST_CASE("An allocation for which there is no memory comes again when all that was kept has been given back") {
  Keeping program;
  program.free(program.allocate());
  unsigned asked = 0;
  program.session->serve(test::kMemAlloc, [&](const auto&, capnp::MessageBuilder& reply, const BulkSink&) {
    reply.initRoot<schema::CuMemAllocV2Results>().setResult(++asked < 3 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
  });
  const size_t before = program.session->total();
  CUdeviceptr address = 0;
  CHECK(hand::cuMemAlloc_v2(&address, 2 * kBytes) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(program.sent_since(before) == std::vector{test::kMemAlloc, test::kMemFree, kKeepingMemory, test::kMemAlloc});
  CHECK(hand::cuMemAlloc_v2(&address, 2 * kBytes) == CUDA_SUCCESS);
  CHECK(asked == 3);
}

TEST_CASE("What tells how much memory there is comes behind all frees") {
  Keeping program;
  program.free(program.allocate());
  const size_t before = program.session->total();
  size_t free_bytes = 0, total = 0;
  REQUIRE(forward::cuMemGetInfo_v2(enter(Needs::context), &free_bytes, &total) == CUDA_SUCCESS);
  CHECK(program.sent_since(before) == std::vector{test::kMemFree, kKeepingMemory, kMemGetInfo});
}

TEST_CASE("A block that nobody has had a use for is given back after a time, one that is used is not") {
  Keeping program;
  KeptMemory& kept = program.kept();
  CHECK(kept.look(Clock::now()) == std::chrono::nanoseconds::max());
  const Clock::time_point begin = Clock::now();
  const CUdeviceptr unused = program.allocate(), used = program.allocate(2 * kBytes);
  program.free(unused);
  program.free(used);
  CHECK(kept.look(begin) > 0ns);
  CHECK(program.session->count(test::kMemFree) == 0);
  CHECK(program.allocate(2 * kBytes) == used);
  const Clock::time_point late = Clock::now() + KeptMemory::kKeptTime;
  CHECK(kept.look(late) == std::chrono::nanoseconds::max());
  CHECK(program.session->count(test::kMemFree) == 1);
  CHECK(address_reservations().reserved_bytes() == 2 * kBytes);
  bool keeps = true;
  program.session->newest().read<schema::KeepingMemory>([&](auto said) { keeps = said.getKeeps(); });
  CHECK_FALSE(keeps);
  program.free(used);
  program.session->newest().read<schema::KeepingMemory>([&](auto said) { keeps = said.getKeeps(); });
  CHECK(keeps);
}

TEST_CASE("Large blocks are not kept, nor more than may be, nor any when it is switched off") {
  {
    Keeping program;
    program.free(program.allocate(KeptMemory::kBlockBytesMax + 1));
    CHECK(program.session->count(test::kMemFree) == 1);
    const CUdeviceptr one = program.allocate(KeptMemory::kBlockBytesMax),
                      two = program.allocate(KeptMemory::kBlockBytesMax), three = program.allocate(1);
    program.free(one);
    program.free(two);
    CHECK(program.session->count(test::kMemFree) == 1);
    program.free(three);
    CHECK(program.session->count(test::kMemFree) == 2);
  }
  Keeping program("0");
  program.free(program.allocate());
  CHECK(program.session->newest().ordinal == test::kMemFree);
  CHECK(program.session->count(kAwaitRest) == 0);
}

TEST_CASE("Beside a capture, or while functions of the program may run, memory is freed as ever") {
  Keeping program;
  Captures& captures = test::server_session().captures;
  HostCallbacks& callbacks = test::server_session().host_callbacks;
  CUdeviceptr memory = program.allocate();
  {
    const Captures::Changing changing(captures);
    program.free(memory);
  }
  CHECK(program.session->newest().ordinal == test::kMemFree);
  memory = program.allocate();
  const uint64_t callback = callbacks.add({.repeats = true});
  program.free(memory);
  CHECK(program.session->newest().ordinal == test::kMemFree);
  callbacks.remove(callback);
  CHECK(program.session->count(kAwaitRest) == 0);
  program.free(program.allocate());
  CHECK(program.session->count(kAwaitRest) == 1);
}

TEST_CASE("Memory that other processes know, or whose attribute the program has set, is freed as ever") {
  Keeping program;
  CUdeviceptr memory = program.allocate();
  CUipcMemHandle handle{};
  program.session->answer_with(forward_ordinal::cuIpcGetMemHandle, CUDA_ERROR_NOT_SUPPORTED);
  hand::cuIpcGetMemHandle(&handle, memory);
  program.free(memory);
  CHECK(program.session->newest().ordinal == test::kMemFree);
  memory = program.allocate();
  const uint32_t on = 1;
  REQUIRE(hand::cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory) == CUDA_SUCCESS);
  program.free(memory);
  CHECK(program.session->newest().ordinal == test::kMemFree);
}

TEST_CASE("What is freed in a stream's order is handed out in the same order alone, and nothing at all is sent") {
  Keeping program;
  const CUstream stream = program.new_stream(), other = program.new_stream();
  const CUdeviceptr memory = program.allocate_on(stream);
  program.free_on(memory, stream);
  size_t before = program.session->total();
  for (int i = 0; i < 10; ++i) {
    CHECK(program.allocate_on(stream) == memory);
    program.free_on(memory, stream);
  }
  CHECK(program.session->total() == before);
  CHECK(program.allocate_on(other) != memory);
  CHECK(program.allocate() != memory);
  CHECK(program.allocate_on(stream, kBytes + 1) != memory);
  CHECK(program.session->count(kMemFreeAsync) == 0);
  before = program.session->total();
  REQUIRE(hand::cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  CHECK(program.sent_since(before).front() == kMemFreeAsync);
}

TEST_CASE("What is kept in the order of streams is given back before one of them begins to capture") {
  Keeping program;
  const CUstream stream = program.new_stream(), other = program.new_stream();
  const CUdeviceptr memory = program.allocate_on(other);
  program.free_on(memory, other);
  const size_t before = program.session->total();
  REQUIRE(hand::cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED, false) == CUDA_SUCCESS);
  CHECK(program.sent_since(before).front() == kMemFreeAsync);
}

TEST_CASE("In the NULL stream nothing is kept once another stream has worked that synchronises with it") {
  Keeping program;
  const CUdeviceptr memory = program.allocate_on(nullptr);
  program.free_on(memory, nullptr);
  CHECK(program.session->count(kMemFreeAsync) == 0);
  CHECK(program.allocate_on(nullptr) == memory);
  const CUstream blocking = program.new_stream(CU_STREAM_DEFAULT);
  REQUIRE(hand::cuMemsetD8Async(memory, 1, kBytes, blocking, false) == CUDA_SUCCESS);
  program.free_on(memory, nullptr);
  CHECK(program.session->newest().ordinal == kMemFreeAsync);
}

TEST_CASE("For a program that looks at what a pool has, an allocation that finds nothing kept comes behind all frees") {
  Keeping program;
  const CUstream stream = program.new_stream();
  program.free_on(program.allocate_on(stream), stream);
  program.allocate_on(stream, 2 * kBytes);
  CHECK(program.session->count(kMemFreeAsync) == 0);
  program.kept().pools_are_watched();
  size_t before = program.session->total();
  program.allocate_on(stream, 3 * kBytes);
  CHECK(program.sent_since(before).front() == kMemFreeAsync);
}

TEST_CASE("After a device has been given another pool, memory of an unnamed one is freed as ever") {
  Keeping program;
  const CUstream stream = program.new_stream();
  const CUdeviceptr memory = program.allocate_on(stream);
  program.kept().device_pool_changes();
  program.free_on(memory, stream);
  CHECK(program.session->newest().ordinal == kMemFreeAsync);
}

TEST_CASE("What was kept of a context's memory ends with the context") {
  Keeping program;
  const CUdeviceptr memory = program.allocate();
  program.free(memory);
  REQUIRE(hand::cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK(program.session->count(test::kMemFree) == 0);
  CHECK(address_reservations().reserved_bytes() == 0);
  program.make_current(0);
  CHECK(program.allocate() != memory);
}

}  // namespace gpuwire::client
