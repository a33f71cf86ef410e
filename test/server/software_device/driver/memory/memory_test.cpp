#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

TEST_CASE("Memory is limited to the device's, and comes back when it is freed") {
  const CurrentContext context;
  size_t free = 0, total = 0;
  REQUIRE(cuMemGetInfo(&free, &total) == CUDA_SUCCESS);
  CHECK(total == kMemoryBytes);
  CUdeviceptr address = 0;
  CHECK(cuMemAlloc(&address, kMemoryBytes + 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemAlloc(&address, SIZE_MAX) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemAlloc(&address, 0) == CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr most = allocate(free - (size_t{1} << 20));
  CHECK(cuMemAlloc(&address, size_t{2} << 20) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemFree(most) == CUDA_SUCCESS);
  CHECK(cuMemFree(most) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree(0) == CUDA_SUCCESS);
  size_t again = 0;
  REQUIRE(cuMemGetInfo(&again, &total) == CUDA_SUCCESS);
  CHECK(again == free);
  const CurrentContext other(1);
  REQUIRE(cuMemGetInfo(&again, &total) == CUDA_SUCCESS);
  CHECK(again == kMemoryBytes);
}

TEST_CASE("Memory that goes waits for the work of its own context, whichever is current") {
  constexpr int kTurns = 10'000;  // turns of another thread, within which a call that does not wait would return
  constexpr size_t kBytes = 4096;
  const CurrentContext owner;
  void *pinned = nullptr, *registered = std::aligned_alloc(4096, kBytes);
  REQUIRE(cuMemAllocHost(&pinned, kBytes) == CUDA_SUCCESS);
  REQUIRE(cuMemHostRegister(registered, kBytes, 0) == CUDA_SUCCESS);
  const CUdeviceptr memory = allocate(kBytes), other_memory = allocate(kBytes);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  auto waits = [&](const void* target, const std::function<CUresult()>& give_up) {
    std::atomic<bool> may_go{false}, over{false}, early{false};
    const auto stand = [](void* flag) {
      while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
    };
    REQUIRE(cuLaunchHostFunc(stream, stand, &may_go) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(target), other_memory, kBytes, stream) == CUDA_SUCCESS);
    std::thread gate([&] {
      for (int i = 0; i < kTurns && !over; ++i) std::this_thread::yield();
      early = over.load();
      may_go = true;
    });
    const CurrentContext current;
    CHECK(give_up() == CUDA_SUCCESS);
    over = true;
    gate.join();
    CHECK_FALSE(early);
  };
  waits(reinterpret_cast<void*>(memory), [&] { return cuMemFree(memory); });
  waits(pinned, [&] { return cuMemFreeHost(pinned); });
  waits(registered, [&] { return cuMemHostUnregister(registered); });
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  std::free(registered);
}

TEST_CASE("New memory holds nothing that the process has left where it lies") {
  const CurrentContext context;
  std::vector<CUdeviceptr> blocks;
  for (int round = 0; round < 50; ++round) {
    std::vector<void*> left;
    for (int i = 0; i < 20; ++i) {
      left.push_back(std::aligned_alloc(256, 4096));
      REQUIRE(left.back() != nullptr);
      std::memset(left.back(), 0x5a, 4096);
    }
    for (void* memory : left) std::free(memory);
    blocks.push_back(allocate(4096));
    std::vector<char> found(4096);
    REQUIRE(cuMemcpyDtoH(found.data(), blocks.back(), found.size()) == CUDA_SUCCESS);
    CHECK(std::all_of(found.begin(), found.end(), [](char byte) { return byte == 0; }));
  }
  for (CUdeviceptr block : blocks) CHECK(cuMemFree(block) == CUDA_SUCCESS);
}

TEST_CASE("The address of memory that was freed is not soon that of other memory") {
  const CurrentContext context;
  std::vector<CUdeviceptr> freed;
  int soon = 0;
  for (int i = 0; i < 400; ++i) {
    const CUdeviceptr address = allocate(4096);
    if (std::find(freed.end() - std::min<ptrdiff_t>(std::ssize(freed), 24), freed.end(), address) != freed.end())
      ++soon;
    CHECK(cuMemFree(address) == CUDA_SUCCESS);
    freed.push_back(address);
  }
  unsigned char byte = 0;
  CHECK(soon == 0);
  CHECK(cuMemcpyDtoH(&byte, freed.back(), 1) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("A range is known by any address in it") {
  const CurrentContext context;
  const CUdeviceptr address = allocate(1000);
  CHECK(address % 256 == 0);
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  CHECK(cuMemGetAddressRange(&begin, &bytes, address + 999) == CUDA_SUCCESS);
  CHECK(begin == address);
  CHECK(bytes == 1000);
  CHECK(cuMemGetAddressRange(&begin, &bytes, address + 1000) == CUDA_ERROR_NOT_FOUND);
  CHECK(cuMemFree(address + 16) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Host memory has the same address for the device") {
  const CurrentContext context;
  void* host = nullptr;
  REQUIRE(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
  CUdeviceptr device = 0;
  CHECK(cuMemHostGetDevicePointer(&device, host, 0) == CUDA_SUCCESS);
  CHECK(device == reinterpret_cast<CUdeviceptr>(host));
  unsigned flags = 0;
  CHECK(cuMemHostGetFlags(&flags, host) == CUDA_SUCCESS);
  CHECK(flags == (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  std::memset(host, 0, 4096);
  CHECK(launch_add_one(function(load(), "add_one"), device) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(*static_cast<unsigned*>(host) == 1);
  CHECK(cuMemFreeHost(host) == CUDA_SUCCESS);
  CHECK(cuMemFreeHost(host) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("The program's own memory can be registered once, and is then the device's to use") {
  const CurrentContext context;
  std::vector<unsigned> own(64, 7);
  const CUfunction add_one = function(load(), "add_one");
  REQUIRE(cuMemHostRegister(own.data(), own.size() * 4, 0) == CUDA_SUCCESS);
  CHECK(cuMemHostRegister(own.data(), 4, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK(launch_add_one(add_one, reinterpret_cast<CUdeviceptr>(own.data())) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(own[0] == 8);
  CHECK(cuMemHostUnregister(own.data()) == CUDA_SUCCESS);
  CHECK(cuMemHostUnregister(own.data()) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_CASE("Memory that is registered for reading alone is read by kernels, and a kernel that writes there faults") {
  constexpr char kCopyWord[] = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry copy_word(.param .u64 to, .param .u64 from)
{
  .reg .b64 %rd<3>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [to];
  ld.param.u64 %rd2, [from];
  ld.global.u32 %r1, [%rd2];
  st.global.u32 [%rd1], %r1;
  ret;
}
)";
  const CurrentContext context;
  int offered = 0;
  CHECK(cuDeviceGetAttribute(&offered, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0) == CUDA_SUCCESS);
  CHECK(offered == 1);
  std::vector<unsigned> own(64, 7);
  REQUIRE(cuMemHostRegister(own.data(), own.size() * 4, CU_MEMHOSTREGISTER_READ_ONLY) == CUDA_SUCCESS);
  const CUfunction copy_word = function(load(kCopyWord), "copy_word");
  CUdeviceptr device = allocate(4), host = reinterpret_cast<CUdeviceptr>(own.data());
  void* reading[] = {&device, &host};
  CHECK(launch(copy_word, reading) == CUDA_SUCCESS);
  CHECK(read(device, 1)[0] == 7);
  write(device, {8});
  void* writing[] = {&host, &device};
  CHECK(launch(copy_word, writing) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(own[0] == 7);
}

TEST_CASE("Managed memory may be larger than the rest of the device, and then takes nothing of it") {
  const CurrentContext context;
  size_t free_bytes = 0, now = 0, total = 0;
  REQUIRE(cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS);
  CUdeviceptr plain = 0, managed = 0, refused = 0;
  REQUIRE(cuMemAlloc(&plain, free_bytes - 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocManaged(&managed, 1u << 20, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuMemAlloc(&refused, 8192) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemGetInfo(&now, &total) == CUDA_SUCCESS);
  CHECK(now == 4096);
  CHECK(cuMemsetD8(managed, 7, 1u << 20) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(reinterpret_cast<const uint8_t*>(managed)[(1u << 20) - 1] == 7);
  CHECK(cuMemFree(managed) == CUDA_SUCCESS);
  CHECK(cuMemFree(plain) == CUDA_SUCCESS);
  CHECK(cuMemGetInfo(&now, &total) == CUDA_SUCCESS);
  CHECK(now == free_bytes);
}

TEST_CASE("Managed memory is one memory for host and device") {
  const CurrentContext context;
  CUdeviceptr address = 0;
  REQUIRE(cuMemAllocManaged(&address, 4096, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  auto* const words = reinterpret_cast<unsigned*>(address);
  words[0] = 41;
  CHECK(launch_add_one(function(load(), "add_one"), address) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(words[0] == 42);
  const CUmemLocation there{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  CHECK(cuMemPrefetchAsync(address, 4096, there, 0, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemAdvise(address, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, there) == CUDA_SUCCESS);
  CHECK(cuMemAdvise(address + 4096, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, there) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE("A pitch keeps rows aligned") {
  const CurrentContext context;
  CUdeviceptr address = 0;
  size_t pitch = 0;
  CHECK(cuMemAllocPitch(&address, &pitch, 700, 10, 4) == CUDA_SUCCESS);
  CHECK(pitch == 1024);
  CHECK(cuMemAllocPitch(&address, &pitch, 700, 10, 3) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocPitch(&address, &pitch, 700, SIZE_MAX / 2, 4) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("Another device's memory is reached by copies at once, and by kernels once peer access is enabled") {
  const CurrentContext first(0);
  const CUdeviceptr there = allocate(4);
  write(there, {20});
  const CurrentContext second(1);
  const CUdeviceptr here = allocate(4);
  CHECK(cuMemcpyDtoD(here, there, 4) == CUDA_SUCCESS);
  CHECK(cuMemcpyPeer(here, second.handle, there, first.handle, 4) == CUDA_SUCCESS);
  CHECK(read(here, 1)[0] == 20);
  int can = 0;
  CHECK(cuDeviceCanAccessPeer(&can, 1, 0) == CUDA_SUCCESS);
  CHECK(can == 1);
  CHECK(cuCtxEnablePeerAccess(first.handle, 0) == CUDA_SUCCESS);
  CHECK(cuCtxEnablePeerAccess(first.handle, 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  CHECK(launch_add_one(function(load(), "add_one"), there) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(read(there, 1)[0] == 21);
  CHECK(cuCtxDisablePeerAccess(first.handle) == CUDA_SUCCESS);
  CHECK(cuCtxDisablePeerAccess(first.handle) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  CHECK(launch_add_one(function(load(), "add_one"), there) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}
