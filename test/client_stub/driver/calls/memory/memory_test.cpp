#include <sys/mman.h>

#include <cstring>

#include "client_stub/driver/state/copy/pending_copies.hpp"
#include "schema/api_memory.capnp.h"
#include "schema/api_pool.capnp.h"
#include "schema/session.capnp.h"
#include "test/client_stub/driver/state/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

using test::DeviceProcess;

// Returns free addresses of this process, such as a server might give.
uint64_t free_address(uint64_t bytes) {
  void* place = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(place != MAP_FAILED);
  munmap(place, bytes);
  return reinterpret_cast<uint64_t>(place);
}

void give(DeviceProcess& process, std::vector<uint64_t> addresses) {
  process.session->answer(test::kMemAlloc, [addresses, next = size_t{0}](capnp::MessageBuilder& reply) mutable {
    reply.initRoot<schema::CuMemAllocV2Results>().setDptr(addresses[std::min(next++, addresses.size() - 1)]);
  });
}

constexpr uint64_t kBytes = 4 << 20;

}  // namespace

TEST_CASE("An allocation has the server's address, and nothing of the program's can land there until it is freed") {
  DeviceProcess process;
  uint64_t address = free_address(kBytes);
  give(process, {address});
  CUdeviceptr pointer = 0;
  REQUIRE(custom::cuMemAlloc_v2(&pointer, kBytes) == CUDA_SUCCESS);
  CHECK(pointer == address);
  void* own = mmap(reinterpret_cast<void*>(address), 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(own != reinterpret_cast<void*>(address));
  munmap(own, 4096);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  REQUIRE(custom::cuMemGetAddressRange_v2(&base, &bytes, pointer + 1000) == CUDA_SUCCESS);
  CHECK(base == address);
  CHECK(bytes == kBytes);
  REQUIRE(custom::cuMemFree_v2(pointer) == CUDA_SUCCESS);
  CHECK(process.session->newest().ordinal == test::kMemFree);
  CHECK(process.session->newest().kind == wire::FrameKind::posted);
  CHECK(address_reservations().reserved_bytes() == 0);
  CHECK(custom::cuMemGetAddressRange_v2(&base, &bytes, pointer) == CUDA_ERROR_NOT_FOUND);
}

TEST_CASE("An allocation on addresses that the program uses is put aside, replaced by another, and given back") {
  DeviceProcess process;
  void* taken = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uint64_t address = free_address(kBytes);
  give(process, {reinterpret_cast<uint64_t>(taken), address});
  CUdeviceptr pointer = 0;
  REQUIRE(custom::cuMemAlloc_v2(&pointer, kBytes) == CUDA_SUCCESS);
  CHECK(pointer == address);
  CHECK(process.session->count(test::kMemAlloc) == 2);
  CHECK(process.session->count(test::kMemFree) == 1);
  process.session->newest().read<schema::CuMemFreeV2Params>(
      [&](auto params) { CHECK(params.getDptr() == reinterpret_cast<uint64_t>(taken)); });
  munmap(taken, kBytes);
}

TEST_CASE("Small allocations on taken addresses are not given back, because they would be handed out again") {
  DeviceProcess process;
  void* taken = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::vector<uint64_t> addresses;
  for (uint64_t i = 0; i < 100; ++i) addresses.push_back(reinterpret_cast<uint64_t>(taken) + i % 8 * 512);
  addresses.push_back(free_address(4096));
  give(process, addresses);
  CUdeviceptr pointer = 0;
  REQUIRE(custom::cuMemAlloc_v2(&pointer, 512) == CUDA_SUCCESS);
  CHECK(pointer == addresses.back());
  CHECK(process.session->count(test::kMemFree) == 0);
  munmap(taken, 4096);
}

TEST_CASE("When every address that the server offers is taken, memory is out, and all of it is given back") {
  DeviceProcess process;
  void* taken = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  give(process, {reinterpret_cast<uint64_t>(taken)});
  CUdeviceptr pointer = 7;
  CHECK(custom::cuMemAlloc_v2(&pointer, kBytes) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(pointer == 7);
  CHECK(process.session->count(test::kMemAlloc) == process.session->count(test::kMemFree));
  CHECK(address_map().size() == 0);
  munmap(taken, kBytes);
}

TEST_CASE("Freeing what is no allocation is an invalid value found here, freeing nothing succeeds") {
  DeviceProcess process;
  address_map().insert({.base = 0x7000'0000'0000, .bytes = 4096, .kind = RangeKind::device});
  address_map().insert({.base = 0x7000'0001'0000, .bytes = 4096, .kind = RangeKind::variable});
  size_t before = process.session->total();
  CHECK(custom::cuMemFree_v2(0) == CUDA_SUCCESS);
  CHECK(custom::cuMemFree_v2(0x7000'0000'0001) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemFree_v2(0x7000'0001'0000) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemFree_v2(0x1234) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.session->total() == before);
  CHECK(custom::cuMemFree_v2(0x7000'0000'0000) == CUDA_SUCCESS);
  CHECK(custom::cuMemFree_v2(0x7000'0000'0000) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Pinned memory that is no host region is made, asked about and freed without the server") {
  constexpr size_t kBytes = 1u << 20;
  DeviceProcess process;
  size_t before = process.session->total();
  void* pinned = nullptr;
  REQUIRE(custom::cuMemHostAlloc(&pinned, kBytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_WRITECOMBINED) ==
          CUDA_SUCCESS);
  std::memset(pinned, 1, kBytes);
  unsigned flags = 0;
  CHECK(custom::cuMemHostGetFlags(&flags, static_cast<char*>(pinned) + kBytes - 1) == CUDA_SUCCESS);
  CHECK(flags == (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_WRITECOMBINED |
                  CU_MEMHOSTALLOC_DEVICEMAP));  // like all pinned memory
  CHECK(custom::cuMemFreeHost(static_cast<char*>(pinned) + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemFreeHost(pinned) == CUDA_SUCCESS);
  CHECK(custom::cuMemFreeHost(pinned) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemHostAlloc(&pinned, 0, 0) == CUDA_SUCCESS);
  CHECK(pinned == nullptr);
  CHECK(custom::cuMemHostAlloc(&pinned, 10, 0x100) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.session->total() == before);
}

TEST_CASE("Host memory is registered once, and unregistered by its first address") {
  DeviceProcess process;
  std::vector<char> memory(8192);
  CHECK(custom::cuMemHostRegister_v2(memory.data(), 8192, 0) == CUDA_SUCCESS);
  CHECK(custom::cuMemHostRegister_v2(memory.data() + 4096, 8192, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK(custom::cuMemHostUnregister(memory.data() + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemHostUnregister(memory.data()) == CUDA_SUCCESS);
  CHECK(custom::cuMemHostUnregister(memory.data()) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  CHECK(custom::cuMemHostRegister_v2(nullptr, 1, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Pinned memory that a copy may still write to is not unmapped") {
  DeviceProcess process;
  address_map().insert({.base = 0x7000'0000'0000, .bytes = 4096, .kind = RangeKind::device});
  void* pinned = nullptr;
  constexpr size_t kBytes = 1u << 20;  // too large to become a host region by itself
  REQUIRE(custom::cuMemAllocHost_v2(&pinned, kBytes) == CUDA_SUCCESS);
  REQUIRE(custom::cuMemcpyDtoHAsync_v2(pinned, 0x7000'0000'0000, 4096, nullptr, false) == CUDA_SUCCESS);
  REQUIRE(test::part<client::PendingCopies>().touches(pinned, 1));
  // The fake server answers the synchronisation but does not send the data.
  CHECK(custom::cuMemFreeHost(pinned) == CUDA_SUCCESS);
  static_cast<char*>(pinned)[0] = 1;
  test::part<client::PendingCopies>().ended(SessionEnd::lost);
  munmap(pinned, kBytes);
}

TEST_CASE("What a context had in memory is forgotten with it") {
  DeviceProcess process;
  uint64_t address = free_address(kBytes);
  give(process, {address});
  CUdeviceptr pointer = 0;
  REQUIRE(custom::cuMemAlloc_v2(&pointer, kBytes) == CUDA_SUCCESS);
  void* pinned = nullptr;
  REQUIRE(custom::cuMemAllocHost_v2(&pinned, 4096) == CUDA_SUCCESS);
  forget_memory_of(*t_context);
  CHECK_FALSE(address_map().find(pointer));
  CHECK(address_reservations().reserved_bytes() == 0);
  CHECK(address_map().find(reinterpret_cast<uint64_t>(pinned)));
}

TEST_CASE("Memory of another process is known in the size that the server tells") {
  DeviceProcess process;
  const uint64_t address = free_address(3 * kBytes);
  // Two small allocations in one block of the driver, and one larger than a block.
  const std::vector<std::pair<uint64_t, uint64_t>> opened{
      {address, 4096}, {address + 4096, 8192}, {address + kBytes, 2 * kBytes}};
  process.session->answer(uint32_t(wire::SessionOrdinal::open_ipc_memory),
                          [&, next = size_t{0}](capnp::MessageBuilder& reply) mutable {
                            auto told = reply.initRoot<schema::ModuleGlobalReply>();
                            told.setAddress(opened[next].first);
                            told.setBytes(opened[next++].second);
                          });
  for (size_t i = 0; i < opened.size(); ++i) {
    CUdeviceptr pointer = 0;
    REQUIRE(custom::cuIpcOpenMemHandle_v2(&pointer, {}, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS);
    CHECK(pointer == opened[i].first);
  }
  for (auto [begin, size] : opened) {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CHECK(custom::cuMemGetAddressRange_v2(&base, &bytes, begin + size - 1) == CUDA_SUCCESS);
    CHECK(base == begin);
    CHECK(bytes == size);
  }
  for (auto [begin, size] : opened) CHECK(custom::cuIpcCloseMemHandle(begin) == CUDA_SUCCESS);
  CHECK(address_reservations().reserved_bytes() == 0);
}

TEST_CASE("Without a context there is no memory") {
  DeviceProcess process;
  REQUIRE(custom::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  CHECK(custom::cuMemAlloc_v2(&pointer, 4) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(custom::cuMemcpyDtoH_v2(&pointer, 0x7000'0000'0000, 4, false) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("Without a current context an address is asked about in the context that it belongs to") {
  DeviceProcess process;
  const uint64_t address = free_address(kBytes);
  give(process, {address});
  CUdeviceptr pointer = 0, base = 0;
  size_t bytes = 0;
  REQUIRE(custom::cuMemAlloc_v2(&pointer, kBytes) == CUDA_SUCCESS);
  const uint64_t pool_address = 0x7000'0000'0000;
  address_map().insert({.base = pool_address, .bytes = 4096, .kind = RangeKind::pool, .context = t_context->handle});
  REQUIRE(custom::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(custom::cuMemGetAddressRange_v2(&base, &bytes, pointer + 1000) == CUDA_SUCCESS);
  CHECK(base == address);
  CHECK(bytes == kBytes);
  CHECK(custom::cuMemGetAddressRange_v2(nullptr, nullptr, pointer) == CUDA_SUCCESS);
  CHECK(custom::cuMemGetAddressRange_v2(&base, &bytes, pool_address) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(custom::cuMemGetAddressRange_v2(&base, &bytes, 0x1234) == CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(custom::cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(custom::cuMemGetAddressRange_v2(&base, &bytes, pointer) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("Without a current context memory is allocated and freed in the order of a stream, in the stream's context") {
  constexpr uint32_t kAllocAsync = 2400, kFreeAsync = 2402;
  DeviceProcess process;
  const uint64_t address = free_address(kBytes);
  process.session->answer(kAllocAsync, [&](capnp::MessageBuilder& reply) {
    reply.initRoot<schema::CuMemAllocAsyncResults>().setDptr(address);
  });
  CUstream stream = nullptr;
  REQUIRE(custom::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const auto context = uint32_t(t_context->handle);
  REQUIRE(custom::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  REQUIRE(custom::cuMemAllocAsync(&pointer, kBytes, stream, false) == CUDA_SUCCESS);
  CHECK(pointer == address);
  CHECK(process.session->newest().ordinal == kAllocAsync);
  CHECK(process.session->newest().context == context);
  REQUIRE(custom::cuMemFreeAsync(pointer, stream, false) == CUDA_SUCCESS);
  CHECK(process.session->newest().ordinal == kFreeAsync);
  CHECK(process.session->newest().context == context);

  const size_t before = process.session->total();
  CHECK(custom::cuMemAllocAsync(nullptr, kBytes, stream, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemAllocAsync(&pointer, kBytes, nullptr, false) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(custom::cuMemAllocAsync(&pointer, kBytes, CU_STREAM_PER_THREAD, false) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(custom::cuMemAllocFromPoolAsync(&pointer, kBytes, nullptr, stream, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemFreeAsync(pointer, nullptr, false) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(process.session->total() == before);
}

}  // namespace gpuwire::client
