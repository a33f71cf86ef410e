#include "client_stub/driver/state/memory/cached_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "client/forward.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "client_stub/driver/state/copy/pending_copies.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "test/client_stub/driver/state/memory/keeping.hpp"

namespace gpuwire::client {
namespace {

using namespace std::chrono_literals;

CachedBlock block(uint64_t base, uint64_t bytes, Clock::time_point since = {}) {
  return {{.base = base, .bytes = bytes}, {.context = 1, .bytes = bytes}, since};
}

}  // namespace

TEST_CASE("An allocation takes the newest cached block of the right use, and each block once") {
  CachedBlocks blocks(1000);
  REQUIRE(blocks.add(block(0x1000, 100)));
  REQUIRE(blocks.add(block(0x2000, 100)));
  REQUIRE(blocks.add(block(0x3000, 50)));
  CHECK(blocks.bytes() == 250);
  CHECK(blocks.find(0x1063)->range.base == 0x1000);
  CHECK_FALSE(blocks.find(0x1064));
  CHECK_FALSE(blocks.add(block(0x1010, 10)));
  CHECK_FALSE(blocks.add(block(0xff0, 32)));
  CHECK_FALSE(blocks.take({.context = 2, .bytes = 100}));
  CHECK_FALSE(blocks.take({.kind = RangeKind::pool, .context = 1, .bytes = 100}));
  CHECK(blocks.count({.context = 1, .bytes = 100}) == 2);
  CHECK(blocks.take({.context = 1, .bytes = 100})->range.base == 0x2000);
  blocks.for_each([](CachedBlock& each) { each.leaving = 7; });
  CHECK(blocks.count({.context = 1, .bytes = 100}) == 0);
  CHECK_FALSE(blocks.take({.context = 1, .bytes = 100}));
  blocks.for_each([](CachedBlock& each) { each.leaving = 0; });
  CHECK(blocks.take({.context = 1, .bytes = 100})->range.base == 0x1000);
  CHECK_FALSE(blocks.take({.context = 1, .bytes = 100}));
  CHECK(blocks.low() == 0x3000);
  CHECK(blocks.high() == 0x3000 + 50);
}

TEST_CASE("Kept blocks have no more bytes together than they may, and are no more than so many") {
  CachedBlocks blocks(1 << 20);
  CHECK_FALSE(blocks.add(block(0x1000, (1 << 20) + 1)));
  REQUIRE(blocks.add(block(0x1000, 1 << 20)));
  CHECK_FALSE(blocks.add(block(0x200000, 1)));
  CHECK(blocks.take({.context = 1, .bytes = 1 << 20}));
  for (uint64_t i = 0; i < CachedBlocks::kBlocksMax; ++i) REQUIRE(blocks.add(block(0x1000 + 16 * i, 16)));
  CHECK_FALSE(blocks.add(block(0x1000 + 16 * CachedBlocks::kBlocksMax, 16)));
  CHECK(blocks.take_if([](const CachedBlock& each) { return each.range.base < 0x1000 + 160; }).size() == 10);
  CHECK(blocks.size() == CachedBlocks::kBlocksMax - 10);
}

TEST_CASE("How much is kept is a size as all sizes are written, the usual one where none is named") {
  CHECK(CachedMemory::bytes_wanted("0") == 0);
  CHECK(CachedMemory::bytes_wanted("3KiB") == 3 << 10);
  CHECK(CachedMemory::bytes_wanted("64MiB") == 64 << 20);
  CHECK(CachedMemory::bytes_wanted("2.5GB") == 2'500'000'000);
  for (const char* unsaid : {static_cast<const char*>(nullptr), ""})
    CHECK(CachedMemory::bytes_wanted(unsaid) == CachedMemory::kBytesUsual);
  for (const char* none : {"4096", "64M", "M", "1X", "-1", "99999999999GiB"})
    CHECK(CachedMemory::bytes_wanted(none) == 0);
}

TEST_CASE("Freed memory is handed out again without a word to the server, under another buffer id") {
  Keeping program;
  const CUdeviceptr first = program.allocate();
  uint64_t id = 0, again_id = 0;
  REQUIRE(custom::cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, first) == CUDA_SUCCESS);
  size_t before = program.session->total();
  program.free(first);
  CHECK(program.sent_since(before) == std::vector{kAwaitRest, kKeepingMemory});
  before = program.session->total();
  CHECK(program.allocate() == first);
  CHECK(program.session->total() == before);
  REQUIRE(custom::cuPointerGetAttribute(&again_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, first) == CUDA_SUCCESS);
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
    REQUIRE(custom::cuMemsetD8Async(memory, 1, kBytes, nullptr, false) == CUDA_SUCCESS);
    before = program.session->total();
    program.free(memory);
    CHECK(program.sent_since(before) == std::vector{kAwaitRest});
  }
}

TEST_CASE("Memory that is kept counts as free and stays, but small blocks go back first") {
  Keeping program;
  constexpr size_t kFree = 1u << 30, kTotal = 2u << 30, kUnit = 2u << 20;
  program.session->answer(kMemGetInfo, [](capnp::MessageBuilder& reply) {
    auto results = reply.initRoot<schema::CuMemGetInfoV2Results>();
    results.setFree(kFree);
    results.setTotal(kTotal);
  });
  const CUdeviceptr large = program.allocate(kUnit + 1), small = program.allocate(kUnit / 2);
  program.free(large);
  program.free(small);
  size_t before = program.session->total();
  size_t free_bytes = 0, total = 0;
  REQUIRE(custom::cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS);
  CHECK(free_bytes == kFree + 2 * kUnit);
  CHECK(total == kTotal);
  CHECK(program.sent_since(before) == std::vector{kFreeAtRest, kMemGetInfo});
  CHECK(program.told_to_leave() == std::vector{small});
  program.answer_at_rest(true);
  before = program.session->total();
  REQUIRE(custom::cuMemGetInfo_v2(&free_bytes, nullptr) == CUDA_SUCCESS);
  CHECK(free_bytes == kFree + 2 * kUnit);
  CHECK(program.sent_since(before) == std::vector{kMemGetInfo});
  CHECK(program.allocate(kUnit + 1) == large);
}

TEST_CASE("A free waits for work that may write to memory of the program, and for no other") {
  Keeping program;
  const CUdeviceptr data = program.allocate();
  CUstream stream = program.new_stream();
  auto waits = [&](CUdeviceptr memory) {
    const size_t before = program.session->total();
    program.free(memory);
    const auto frames = program.session->frames();
    return std::any_of(frames.begin() + ptrdiff_t(before), frames.end(),
                       [](const auto& frame) { return frame.kind == wire::FrameKind::called; });
  };
  const CUdeviceptr first = program.allocate(), second = program.allocate(), third = program.allocate();
  REQUIRE(custom::cuMemsetD8Async(data, 1, kBytes, stream, false) == CUDA_SUCCESS);
  CHECK_FALSE(waits(first));
  void* pinned = nullptr;
  REQUIRE(custom::cuMemAllocHost_v2(&pinned, kBytes) == CUDA_SUCCESS);
  REQUIRE(custom::cuMemcpyDtoHAsync_v2(pinned, data, 64, stream, false) == CUDA_SUCCESS);
  CHECK(waits(second));
  CHECK_FALSE(waits(third));  // all work is known to be done
  test::part<client::PendingCopies>().ended(SessionEnd::lost);
  REQUIRE(custom::cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

TEST_CASE("A question about work before a free is asked behind it, and not answered from what was known before") {
  Keeping program;
  CUstream stream = program.new_stream();
  const CUdeviceptr data = program.allocate(), memory = program.allocate();
  constexpr uint32_t kStreamQuery = 2503;
  program.session->answer_with(kStreamQuery, CUDA_ERROR_NOT_READY);
  REQUIRE(custom::cuMemsetD8Async(data, 1, kBytes, stream, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_ERROR_NOT_READY);
  const size_t before = program.session->count(kStreamQuery);
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_ERROR_NOT_READY);
  CHECK(program.session->count(kStreamQuery) == before);
  program.free(memory);
  program.session->answer_with(kStreamQuery, CUDA_SUCCESS);
  CHECK(custom::cuStreamQuery(stream, false) == CUDA_SUCCESS);
}

TEST_CASE("An address of freed memory is unknown, wherever it is asked about") {
  Keeping program;
  const CUdeviceptr memory = program.allocate();
  program.free(memory);
  CUdeviceptr base = 0;
  uint64_t value = 0;
  CHECK(custom::cuMemGetAddressRange_v2(&base, nullptr, memory) == CUDA_ERROR_NOT_FOUND);
  CHECK(custom::cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_BUFFER_ID, memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemFree_v2(memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemFreeAsync(memory, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(program.session->count(test::kMemFree) == 0);
}

TEST_CASE("Before the server's driver is to judge an address of freed memory, it is freed there") {
  Keeping program;
  const CUdeviceptr memory = program.allocate();
  program.free(memory);
  const size_t before = program.session->total();
  CHECK(custom::cuMemsetD8Async(memory + 5, 1, 4, nullptr, false) == CUDA_SUCCESS);
  CHECK(program.session->count(test::kMemFree) == 1);
  CHECK(program.sent_since(before).front() == test::kMemFree);
}

TEST_CASE("Memory that may be named by a kernel's parameters is given back, if that waits for no work") {
  Keeping program;
  const CUdeviceptr memory = program.allocate();
  program.free(memory);
  const uint64_t parameters[] = {1, memory + kBytes - 1};
  auto poll = [&] { note_addresses_in(enter(Needs::context), std::as_bytes(std::span(parameters))); };
  poll();
  CHECK(program.told_to_leave() == std::vector{memory});
  poll();  // there is no answer yet
  CHECK(program.session->count(kFreeAtRest) == 1);
  CHECK(program.session->count(test::kMemFree) == 0);
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
  CHECK(custom::cuMemAlloc_v2(&address, 2 * kBytes) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(program.sent_since(before) == std::vector{test::kMemAlloc, test::kMemFree, kKeepingMemory, test::kMemAlloc});
  CHECK(custom::cuMemAlloc_v2(&address, 2 * kBytes) == CUDA_SUCCESS);
  CHECK(asked == 3);
}

TEST_CASE("A call that reports the amount of memory is sent behind frees of small blocks that wait for no work") {
  Keeping program;
  const CUdeviceptr memory = program.allocate();
  program.free(memory);
  size_t before = program.session->total();
  size_t free_bytes = 0, total = 0;
  REQUIRE(custom::cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS);
  CHECK(program.sent_since(before) == std::vector{kFreeAtRest, kMemGetInfo});
  CHECK(program.told_to_leave() == std::vector{memory});
  program.answer_at_rest(true);
  CHECK(address_reservations().reserved_bytes() == 0);
  CHECK(program.allocate() != memory);
}

TEST_CASE("Memory of which the server has not said whether it is freed is nobody's") {
  Keeping program;
  const CUdeviceptr memory = program.allocate();
  program.free(memory);
  give_back_cached_memory(enter(Needs::context));
  const CUdeviceptr other = program.allocate();
  CHECK(other != memory);
  SUBCASE("it was not, since work was under way: it is kept on") {
    program.answer_at_rest(false);
    CHECK(program.allocate() == memory);
  }
  SUBCASE("it was") {
    program.answer_at_rest(true);
    CHECK(address_reservations().reserved_bytes() == kBytes);
  }
  SUBCASE("a call that names it waits for the answer, and has it freed if it was not") {
    program.session->serve(kPing, [&](const auto&, capnp::MessageBuilder& reply, const BulkSink&) {
      program.answer_at_rest(false);
      reply.initRoot<schema::Result>();
    });
    const size_t before = program.session->total();
    CHECK(custom::cuMemsetD8Async(memory, 1, 4, nullptr, false) == CUDA_SUCCESS);
    const auto sent = program.sent_since(before);
    CHECK(std::vector(sent.begin(), sent.begin() + 2) == std::vector{kPing, test::kMemFree});
  }
  SUBCASE("an allocation for which there is no memory waits for the answer, too") {
    bool answered = false;
    program.session->serve(kPing, [&](const auto&, capnp::MessageBuilder& reply, const BulkSink&) {
      program.answer_at_rest(false);
      answered = true;
      reply.initRoot<schema::Result>();
    });
    program.session->serve(test::kMemAlloc, [&](const auto&, capnp::MessageBuilder& reply, const BulkSink&) {
      const bool freed = program.session->count(test::kMemFree) == 1;
      reply.initRoot<schema::CuMemAllocV2Results>().setResult(freed ? CUDA_ERROR_NOT_SUPPORTED
                                                                    : CUDA_ERROR_OUT_OF_MEMORY);
    });
    CUdeviceptr address = 0;
    CHECK(custom::cuMemAlloc_v2(&address, 2 * kBytes) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(answered);
  }
  SUBCASE("its context ends: an answer that comes then is about nothing") {
    REQUIRE(custom::cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
    CHECK(address_reservations().reserved_bytes() == 0);
    program.answer_at_rest(false);
    program.make_current(0);
    CHECK(program.allocate() != memory);
  }
}

TEST_CASE(
    "A block that nobody has had a use for leaves after a time if no work is under way, one that is used does not") {
  Keeping program;
  CachedMemory& kept = program.kept();
  CHECK(kept.poll(Clock::now()) == std::chrono::nanoseconds::max());
  const Clock::time_point begin = Clock::now();
  const CUdeviceptr unused = program.allocate(), used = program.allocate(2 * kBytes);
  program.free(unused);
  program.free(used);
  CHECK(kept.poll(begin) > 0ns);
  CHECK(program.session->count(kFreeAtRest) == 0);
  CHECK(program.allocate(2 * kBytes) == used);
  Clock::time_point late = Clock::now() + CachedMemory::kCachedTime;
  CHECK(kept.poll(late) < CachedMemory::kCachedTime);  // an answer is pending
  CHECK(program.told_to_leave() == std::vector{unused});
  CHECK(program.session->count(test::kMemFree) == 0);
  program.answer_at_rest(false);
  // The block is cached again, and queried again later.
  CHECK(program.allocate() == unused);
  program.free(unused);
  kept.poll(late);
  CHECK(program.session->count(kFreeAtRest) == 1);
  late = Clock::now() + 2 * CachedMemory::kCachedTime;
  kept.poll(late);
  CHECK(program.session->count(kFreeAtRest) == 2);
  program.answer_at_rest(true);
  CHECK(kept.poll(late + CachedMemory::kCachedTime) == std::chrono::nanoseconds::max());
  CHECK(program.session->count(test::kMemFree) == 0);
  CHECK(address_reservations().reserved_bytes() == 2 * kBytes);
  bool keeps = true;
  program.session->newest().read<schema::KeepingMemory>([&](auto said) { keeps = said.getKeeps(); });
  CHECK_FALSE(keeps);
  program.free(used);
  program.session->newest().read<schema::KeepingMemory>([&](auto said) { keeps = said.getKeeps(); });
  CHECK(keeps);
}

TEST_CASE("Beside a capture plain memory is kept on: whether there is work could not be asked") {
  Keeping program;
  program.free(program.allocate());
  const Captures::Changing changing(test::part<client::Captures>());
  program.kept().poll(Clock::now() + CachedMemory::kCachedTime);
  give_back_cached_memory(enter(Needs::context));
  CHECK(program.session->count(kFreeAtRest) == 0);
  CHECK(program.session->count(test::kMemFree) == 0);
}

TEST_CASE("Large blocks are not kept, nor more than may be, nor any when it is switched off") {
  {
    Keeping program;
    program.free(program.allocate(CachedMemory::kBlockBytesMax + 1));
    CHECK(program.session->count(test::kMemFree) == 1);
    const CUdeviceptr one = program.allocate(CachedMemory::kBlockBytesMax),
                      two = program.allocate(CachedMemory::kBlockBytesMax - 1), three = program.allocate(2);
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
  Captures& captures = test::part<client::Captures>();
  HostCallbacks& callbacks = test::part<client::HostCallbacks>();
  CUdeviceptr memory = program.allocate();
  {
    const Captures::Changing changing(captures);
    program.free(memory);
  }
  CHECK(program.session->newest().ordinal == test::kMemFree);
  memory = program.allocate();
  const uint64_t callback = callbacks.add({});
  program.free(memory);
  CHECK(program.session->newest().ordinal == test::kMemFree);
  callbacks.remove(callback);
  memory = program.allocate();
  {
    const MemoryInFlight::Sending launch(enter(Needs::context), 0, nullptr, Awaits::functions);
    program.free(memory);
  }
  CHECK(program.session->newest().ordinal == test::kMemFree);
  callbacks.add({.repeats = true});  // of a graph that was not launched: no function runs
  CHECK(program.session->count(kAwaitRest) == 0);
  program.free(program.allocate());
  CHECK(program.session->count(kAwaitRest) == 1);
}

TEST_CASE("Memory that other processes know, or whose attribute the program has set, is freed as ever") {
  Keeping program;
  CUdeviceptr memory = program.allocate();
  CUipcMemHandle handle{};
  program.session->answer_with(forward_ordinal::cuIpcGetMemHandle, CUDA_ERROR_NOT_SUPPORTED);
  custom::cuIpcGetMemHandle(&handle, memory);
  program.free(memory);
  CHECK(program.session->newest().ordinal == test::kMemFree);
  memory = program.allocate();
  const uint32_t on = 1;
  REQUIRE(custom::cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory) == CUDA_SUCCESS);
  program.free(memory);
  CHECK(program.session->newest().ordinal == test::kMemFree);
}

TEST_CASE("A block that is freed in a stream's order is handed out in that order alone, and nothing is sent") {
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
  REQUIRE(custom::cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  CHECK(program.sent_since(before).front() == kMemFreeAsync);
}

TEST_CASE("A thread that destroys a stream waits for the frees in its order that another thread is sending") {
  Keeping program;
  CachedMemory& kept = program.kept();
  const CUstream stream = program.new_stream();
  program.free_on(program.allocate_on(stream), stream);
  size_t frees = 0;
  program.session->before_frames([&](uint32_t ordinal) {
    if (ordinal != kMemFreeAsync) return;
    ++frees;
    CHECK(kept.keeping());
    CHECK(kept.any());
  });
  kept.poll(Clock::now() + CachedMemory::kCachedTime);
  CHECK(frees == 1);
  CHECK_FALSE(kept.keeping());
  CHECK_FALSE(kept.any());
}

TEST_CASE("Blocks that are cached in the order of streams are returned before one of them begins to capture") {
  Keeping program;
  const CUstream stream = program.new_stream(), other = program.new_stream();
  const CUdeviceptr memory = program.allocate_on(other);
  program.free_on(memory, other);
  const size_t before = program.session->total();
  REQUIRE(custom::cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED, false) == CUDA_SUCCESS);
  CHECK(program.sent_since(before).front() == kMemFreeAsync);
}

TEST_CASE("In the NULL stream nothing is kept once another stream has worked that synchronises with it") {
  Keeping program;
  const CUdeviceptr memory = program.allocate_on(nullptr);
  program.free_on(memory, nullptr);
  CHECK(program.session->count(kMemFreeAsync) == 0);
  CHECK(program.allocate_on(nullptr) == memory);
  const CUstream blocking = program.new_stream(CU_STREAM_DEFAULT);
  REQUIRE(custom::cuMemsetD8Async(memory, 1, kBytes, blocking, false) == CUDA_SUCCESS);
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

TEST_CASE("Cached blocks of a context end with the context") {
  Keeping program;
  const CUdeviceptr memory = program.allocate();
  program.free(memory);
  REQUIRE(custom::cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK(program.session->count(test::kMemFree) == 0);
  CHECK(address_reservations().reserved_bytes() == 0);
  program.make_current(0);
  CHECK(program.allocate() != memory);
}

// --- allocated ahead -----------------------------------------------------------------------------------------------

TEST_CASE("Two allocations of a size prefetch more, twice as many each time that half of them are used") {
  const BlockUse use{.context = 1, .bytes = kBytes}, other{.context = 2, .bytes = kBytes};
  PrefetchDemand demand;
  Clock::time_point now{1h};
  CHECK(demand.allocated(use, true, 0, now) == 0);
  CHECK(demand.allocated(other, true, 0, now) == 0);
  CHECK(demand.allocated(use, true, 0, now) == 2);
  CHECK(demand.allocated(use, false, 1, now) == 4);
  CHECK(demand.allocated(use, false, 4, now) == 0);
  CHECK(demand.allocated(use, false, 3, now) == 0);
  CHECK(demand.allocated(use, false, 2, now) == 8);
  CHECK(demand.allocated(use, false, 4, now) == 16);
  CHECK(demand.allocated(use, false, 8, now) == PrefetchDemand::kBlocksMax);
  CHECK(demand.allocated(other, true, 0, now) == 2);
  SUBCASE("it begins again after a pause") {
    now += PrefetchDemand::kMemory + 1ms;
    CHECK(demand.allocated(use, true, 0, now) == 0);
    CHECK(demand.allocated(use, true, 0, now) == 2);
  }
  SUBCASE("it begins again when they were not used") {
    demand.forget(use);
    CHECK(demand.allocated(use, false, 0, now) == 0);
    CHECK(demand.allocated(use, true, 0, now) == 0);
    CHECK(demand.allocated(other, false, 0, now) == 4);
  }
  SUBCASE("it ends with the context") {
    demand.forget_context(1);
    CHECK(demand.allocated(use, false, 0, now) == 0);
    CHECK(demand.allocated(other, false, 0, now) == 4);
  }
}

TEST_CASE("A program that allocates one block after the other finds the third and later ones prefetched") {
  Keeping program;
  program.allocate();
  CHECK(program.session->count(kAllocateAhead) == 0);
  program.allocate();
  REQUIRE(program.session->count(kAllocateAhead) == 1);
  for (int round = 0; round < 3; ++round) {
    auto ahead = program.answer_ahead();
    REQUIRE(ahead.size() == size_t{2} << round);
    const size_t asked = program.session->count(test::kMemAlloc);
    std::reverse(ahead.begin(), ahead.end());
    const size_t asks = program.session->count(kAllocateAhead);
    while (program.session->count(kAllocateAhead) == asks) {
      const CUdeviceptr memory = program.allocate();
      CUdeviceptr base = 0;
      size_t bytes = 0;
      CHECK(custom::cuMemGetAddressRange_v2(&base, &bytes, memory + kBytes - 1) == CUDA_SUCCESS);
      CHECK(base == memory);
      CHECK(bytes == kBytes);
    }
    CHECK(program.session->count(test::kMemAlloc) == asked);
  }
}

TEST_CASE("Memory that was allocated ahead is the program's like any other once it has it") {
  Keeping program;
  program.allocate();
  program.allocate();
  const auto ahead = program.answer_ahead();
  CUdeviceptr base = 0;
  CHECK(custom::cuMemGetAddressRange_v2(&base, nullptr, ahead[0]) == CUDA_ERROR_NOT_FOUND);
  CHECK(custom::cuMemFree_v2(ahead[0]) == CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr memory = program.allocate();
  CHECK(memory == ahead[1]);
  int device = -1;
  CHECK(custom::cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory) == CUDA_SUCCESS);
  CHECK(device == 0);
  program.session->answer_with(forward_ordinal::cuIpcGetMemHandle, CUDA_ERROR_NOT_SUPPORTED);
  CUipcMemHandle handle{};
  custom::cuIpcGetMemHandle(&handle, memory);
  program.free(memory);
  CHECK(program.session->newest().ordinal == test::kMemFree);  // other processes have it
}

TEST_CASE("A call that reports the amount of memory waits for prefetched blocks, and frees them first") {
  Keeping program;
  program.allocate();
  program.allocate();
  std::vector<CUdeviceptr> ahead;
  program.session->serve(kPing, [&](const auto&, capnp::MessageBuilder& reply, const BulkSink&) {
    ahead = program.answer_ahead();
    reply.initRoot<schema::Result>();
  });
  const size_t before = program.session->total();
  size_t free_bytes = 0, total = 0;
  REQUIRE(custom::cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS);
  CHECK(program.sent_since(before) == std::vector{kPing, kFreeAtRest, kMemGetInfo});
  CHECK(program.told_to_leave() == ahead);
  program.answer_at_rest(true);
  // The prefetch begins again.
  program.allocate();
  CHECK(program.session->count(kAllocateAhead) == 1);
}

TEST_CASE("While a function of the program is to come, nothing waits for memory that was asked for ahead") {
  // The thread that makes a stream may hold a lock that the function needs, and the server may block until the function
  // has returned.
  Keeping program;
  program.allocate();
  program.allocate();
  REQUIRE(program.session->count(kAllocateAhead) == 1);
  auto& callbacks = test::part<HostCallbacks>();
  const uint64_t callback = callbacks.add({});
  program.new_stream();
  program.kept().scan_address(program.new_address());
  CHECK(program.session->count(kPing) == 0);
  callbacks.remove(callback);
  {
    const MemoryInFlight::Sending launch(enter(Needs::context), 0, nullptr, Awaits::functions);
    program.new_stream();
    CHECK(program.session->count(kPing) == 0);
  }
  program.new_stream();
  CHECK(program.session->count(kPing) == 1);
}

TEST_CASE("An address that the server may have given to memory ahead by now is judged when that is known") {
  Keeping program;
  program.allocate();
  const CUdeviceptr memory = program.allocate();
  const CUdeviceptr address = program.new_address();
  program.session->serve(kPing, [&](const auto&, capnp::MessageBuilder& reply, const BulkSink&) {
    program.answer_ahead({address, program.new_address()});
    reply.initRoot<schema::Result>();
  });
  const size_t before = program.session->total();
  program.kept().scan_address(memory + 5);
  CHECK(program.session->total() == before);
  program.kept().scan_address(address + 5);
  CHECK(program.sent_since(before) == std::vector{kPing, test::kMemFree});
  program.kept().scan_address(address + 5);
  CHECK(program.session->total() == before + 2);
}

TEST_CASE("Memory that was allocated ahead in vain goes after a time, and so much is not asked for again") {
  Keeping program;
  program.allocate();
  program.allocate();
  const auto ahead = program.answer_ahead();
  program.kept().poll(Clock::now() + 2 * CachedMemory::kCachedTime);
  CHECK(program.told_to_leave() == ahead);
  program.answer_at_rest(true);
  CHECK(address_reservations().reserved_bytes() == 2 * kBytes);
  program.allocate();
  CHECK(program.session->count(kAllocateAhead) == 1);
  program.allocate();
  CHECK(program.session->count(kAllocateAhead) == 2);
  CHECK(program.asked_ahead() == 2);
}

TEST_CASE("A block that came ahead where this process has something else is given back and never handed out") {
  Keeping program;
  program.allocate();
  program.allocate();
  void* own = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(own != MAP_FAILED);
  const auto taken = reinterpret_cast<uint64_t>(own);
  program.answer_ahead({taken, 0});
  CHECK(program.allocate() != taken);
  program.kept().poll(Clock::now() + 2 * CachedMemory::kCachedTime);
  CHECK(program.told_to_leave() == std::vector<CUdeviceptr>{taken});
  program.answer_at_rest(true);
  std::memset(own, 1, kBytes);  // still the process's own
  munmap(own, kBytes);
}

TEST_CASE("More than was asked for, the same twice, and answers to no question are not taken") {
  Keeping program;
  program.allocate();
  program.allocate();
  const uint64_t address = program.new_address();
  program.answer_ahead({address, address, program.new_address()});
  program.answer_ahead({program.new_address()});  // once more
  program.kept().poll(Clock::now() + 2 * CachedMemory::kCachedTime);
  CHECK(program.told_to_leave() == std::vector<CUdeviceptr>{address});
}

TEST_CASE(
    "Nothing is asked for ahead beside captures and functions of the program, of large blocks, or when it is off") {
  {
    Keeping program;
    program.allocate();
    const Captures::Changing changing(test::part<client::Captures>());
    program.kept().missed(enter(Needs::context), {.context = enter(Needs::context).context_handle, .bytes = kBytes});
    CHECK(program.session->count(kAllocateAhead) == 0);
  }
  {
    Keeping program;
    for (int i = 0; i < 3; ++i) program.allocate(CachedMemory::kBlockBytesMax + 1);
    CHECK(program.session->count(kAllocateAhead) == 0);
    // At most half of the cache's bound.
    for (int i = 0; i < 3; ++i) program.allocate(CachedMemory::kBlockBytesMax);
    CHECK(program.session->count(kAllocateAhead) == 1);
    CHECK(program.asked_ahead(CachedMemory::kBlockBytesMax) == 1);
  }
  Keeping program("0");
  for (int i = 0; i < 3; ++i) program.allocate();
  CHECK(program.session->count(kAllocateAhead) == 0);
}

TEST_CASE("Prefetched blocks end with the context") {
  Keeping program;
  program.allocate();
  program.allocate();
  REQUIRE(program.session->count(kAllocateAhead) == 1);
  REQUIRE(custom::cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  program.answer_ahead();
  CHECK(address_reservations().reserved_bytes() == 0);
}

}  // namespace gpuwire::client
