#include "client_stub/driver/state/host_memory/host_regions.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "client_stub/driver/state/composition/notices.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/memory/shares.hpp"
#include "test/client_stub/driver/state/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

using test::SentFrame;
using wire::SessionOrdinal;

struct RegionProcess : test::DeviceProcess {
  size_t count(SessionOrdinal ordinal) const { return session->count(uint32_t(ordinal)); }
  std::byte* allocate(size_t bytes, unsigned flags = 0) {
    void* memory = nullptr;
    REQUIRE(custom::cuMemHostAlloc(&memory, bytes, flags) == CUDA_SUCCESS);
    return static_cast<std::byte*>(memory);
  }
  void fill(std::byte* memory, size_t bytes) {
    REQUIRE(custom::cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory), 1, bytes, nullptr, false) == CUDA_SUCCESS);
  }
  // Receives bytes as from the server.
  void receive(std::byte* region, uint64_t offset, std::vector<std::byte> bytes, std::vector<uint8_t> mask = {}) {
    BulkSink sink = test::part<client::HostRegions>().sink(bytes.size());
    REQUIRE(sink.bytes == bytes.size());
    std::memcpy(sink.data, bytes.data(), bytes.size());
    test::part<client::HostRegions>().stored(reinterpret_cast<uint64_t>(region), offset, mask, bytes.size());
  }
};

CUdeviceptr device_pointer(void* memory, CUresult expected = CUDA_SUCCESS) {
  CUdeviceptr pointer = 0;
  CHECK(custom::cuMemHostGetDevicePointer_v2(&pointer, memory, 0) == expected);
  return pointer;
}

}  // namespace

TEST_CASE(
    "Pinned memory is a region when its device pointer is asked for, whatever its size and flags, and costs nothing "
    "before") {
  RegionProcess process;
  const size_t before = process.session->total();
  std::byte* small = process.allocate(8, CU_MEMHOSTALLOC_PORTABLE);
  std::byte* mapped = process.allocate(1u << 20, CU_MEMHOSTALLOC_DEVICEMAP);
  std::vector<std::byte> registered(100);
  REQUIRE(custom::cuMemHostRegister_v2(registered.data(), registered.size(), CU_MEMHOSTREGISTER_DEVICEMAP) ==
          CUDA_SUCCESS);
  CHECK(process.session->total() == before);
  CHECK(device_pointer(mapped + 5) == reinterpret_cast<CUdeviceptr>(mapped + 5));
  CHECK(process.count(SessionOrdinal::region_create) == 1);
  CHECK(device_pointer(mapped) == reinterpret_cast<CUdeviceptr>(mapped));
  CHECK(process.count(SessionOrdinal::region_create) == 1);
  CHECK(device_pointer(small) == reinterpret_cast<CUdeviceptr>(small));
  CHECK(process.count(SessionOrdinal::region_create) == 2);
  CHECK(custom::cuMemFreeHost(mapped) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_destroy) == 1);
  CHECK(custom::cuMemHostUnregister(registered.data()) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_destroy) == 1);
}

TEST_CASE("A mapping that may only be read, even in part, is registered for reading alone") {
  RegionProcess process;
  constexpr size_t kPage = 4096;
  void* mapped = mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(mapped != MAP_FAILED);
  auto* pages = static_cast<std::byte*>(mapped);
  REQUIRE(mprotect(pages + kPage, kPage, PROT_READ) == 0);
  CHECK(custom::cuMemHostRegister_v2(pages + 100, 3 * kPage - 200, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemHostRegister_v2(pages + 2 * kPage, 10, 0) == CUDA_SUCCESS);
  CHECK(custom::cuMemHostRegister_v2(pages, 2 * kPage, CU_MEMHOSTREGISTER_READ_ONLY) == CUDA_SUCCESS);
  CHECK(custom::cuMemHostUnregister(pages + 2 * kPage) == CUDA_SUCCESS);
  CHECK(custom::cuMemHostUnregister(pages) == CUDA_SUCCESS);
  munmap(mapped, 3 * kPage);
}

TEST_CASE("A registration for reading alone is refused where the device's attribute says that it has none") {
  RegionProcess process;
  std::vector<std::byte> memory(100);
  auto& offered = process.session->facts().devices[0].attributes[CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED];
  offered = 0;
  CHECK(custom::cuMemHostRegister_v2(memory.data(), memory.size(), CU_MEMHOSTREGISTER_READ_ONLY) ==
        CUDA_ERROR_NOT_SUPPORTED);
  CHECK(custom::cuMemHostRegister_v2(memory.data(), memory.size(), 0) == CUDA_SUCCESS);
  CHECK(custom::cuMemHostUnregister(memory.data()) == CUDA_SUCCESS);
  offered = 1;
  CHECK(custom::cuMemHostRegister_v2(memory.data(), memory.size(), CU_MEMHOSTREGISTER_READ_ONLY) == CUDA_SUCCESS);
  CHECK(custom::cuMemHostUnregister(memory.data()) == CUDA_SUCCESS);
}

TEST_CASE(
    "A pointer among copied bytes makes the memory a region before the next work, and a pointer in that memory does "
    "so, too") {
  RegionProcess process;
  constexpr uint64_t kDevice = 0x7000'0000'0000;
  address_map().insert({.base = kDevice, .bytes = 4096, .kind = RangeKind::device});
  std::byte *first = process.allocate(64), *second = process.allocate(64), *third = process.allocate(64);
  std::byte* const inside = second + 48;
  std::memcpy(first + 8, &inside, sizeof inside);
  std::byte* const table[] = {nullptr, first + 16};
  CHECK(custom::cuMemcpyHtoDAsync_v2(kDevice, table, sizeof table, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_create) == 0);
  CHECK(custom::cuMemsetD8Async(kDevice, 1, 4, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_create) == 2);
  CHECK(test::part<client::HostRegions>().holds(reinterpret_cast<uint64_t>(first), 64));
  CHECK(test::part<client::HostRegions>().holds(reinterpret_cast<uint64_t>(second), 64));
  CHECK(process.count(SessionOrdinal::region_write) == 1);
  // With one changed byte it is another pointer.
  std::memcpy(first + 8, &third, sizeof third);
  CHECK(custom::cuMemsetD8Async(kDevice, 1, 4, nullptr, false) == CUDA_SUCCESS);
  CHECK(test::part<client::HostRegions>().holds(reinterpret_cast<uint64_t>(third), 64));
}

TEST_CASE(
    "Memory that the server cannot mirror is asked for once by those who name it, and is given up without trace") {
  RegionProcess process;
  constexpr uint64_t kDevice = 0x7000'0000'0000;
  address_map().insert({.base = kDevice, .bytes = 4096, .kind = RangeKind::device});
  process.session->answer_with(uint32_t(SessionOrdinal::region_create), CUDA_ERROR_NOT_SUPPORTED);
  std::byte* memory = process.allocate(64);
  for (int i = 0; i < 3; ++i) {
    CHECK(custom::cuMemcpyHtoDAsync_v2(kDevice, &memory, sizeof memory, nullptr, false) == CUDA_SUCCESS);
    CHECK(custom::cuMemsetD8Async(kDevice, 1, 4, nullptr, false) == CUDA_SUCCESS);
  }
  CHECK(process.count(SessionOrdinal::region_create) == 1);
  CHECK(custom::cuMemFreeHost(memory) == CUDA_SUCCESS);
  CHECK_FALSE(test::part<client::PinnedPointers>().any());
}

TEST_CASE("Memory that is given up is not made a region by a pointer that is still about") {
  RegionProcess process;
  constexpr uint64_t kDevice = 0x7000'0000'0000;
  address_map().insert({.base = kDevice, .bytes = 4096, .kind = RangeKind::device});
  process.allocate(8);
  std::byte* memory = process.allocate(64);
  CHECK(custom::cuMemcpyHtoDAsync_v2(kDevice, &memory, sizeof memory, nullptr, false) == CUDA_SUCCESS);
  CHECK(custom::cuMemFreeHost(memory) == CUDA_SUCCESS);
  CHECK(custom::cuMemsetD8Async(kDevice, 1, 4, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_create) == 0);
}

TEST_CASE("Memory that the server cannot mirror is good for copies, and has no device pointer") {
  RegionProcess process;
  process.session->answer_with(uint32_t(SessionOrdinal::region_create), CUDA_ERROR_NOT_SUPPORTED);
  std::byte* memory = process.allocate(8, CU_MEMHOSTALLOC_DEVICEMAP);
  device_pointer(memory, CUDA_ERROR_NOT_SUPPORTED);
  CHECK(custom::cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory), 1, 8, nullptr, false) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(test::part<client::HostRegions>().any());
  CHECK(custom::cuMemFreeHost(memory) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_destroy) == 0);
}

TEST_CASE("Memory that the server has no room for is out of memory where the device is to use it") {
  RegionProcess process;
  process.session->answer_with(uint32_t(SessionOrdinal::region_create), CUDA_ERROR_OUT_OF_MEMORY);
  std::byte* memory = process.allocate(8, CU_MEMHOSTALLOC_DEVICEMAP);
  device_pointer(memory, CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(custom::cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory), 1, 8, nullptr, false) ==
        CUDA_ERROR_OUT_OF_MEMORY);
  alignas(4096) static std::byte registered[4096];
  REQUIRE(custom::cuMemHostRegister_v2(registered, sizeof registered, CU_MEMHOSTREGISTER_DEVICEMAP) == CUDA_SUCCESS);
  CHECK(custom::cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(registered), 1, 8, nullptr, false) ==
        CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(custom::cuMemHostUnregister(registered) == CUDA_SUCCESS);
  CHECK_FALSE(test::part<client::HostRegions>().any());
  CHECK(custom::cuMemFreeHost(memory) == CUDA_SUCCESS);
}

TEST_CASE("The program's changes are sent before the work, once, and without unchanged bytes") {
  RegionProcess process;
  std::byte* memory = process.allocate(100);
  process.fill(memory, 4);
  CHECK(process.count(SessionOrdinal::region_write) == 0);
  memory[10] = std::byte{1};
  memory[12] = std::byte{3};
  process.fill(memory, 4);
  REQUIRE(process.count(SessionOrdinal::region_write) == 1);
  auto frames = process.session->frames();
  const SentFrame& write = frames[frames.size() - 2];
  REQUIRE(write.ordinal == uint32_t(SessionOrdinal::region_write));
  CHECK(write.bulk == std::vector<std::byte>{std::byte{1}, std::byte{0}, std::byte{3}});
  write.read<schema::RegionChange>([&](auto change) {
    CHECK(change.getAddress() == reinterpret_cast<uint64_t>(memory));
    CHECK(change.getOffset() == 10);
    REQUIRE(change.getChanged().size() == 1);
    CHECK(change.getChanged()[0] == 0b101);
  });
  process.fill(memory, 4);
  CHECK(process.count(SessionOrdinal::region_write) == 1);
}

TEST_CASE("The device's changes are stored, are not sent back, and leave the program's own bytes alone") {
  RegionProcess process;
  std::byte* memory = process.allocate(100);
  device_pointer(memory);
  memory[5] = std::byte{50};
  process.receive(memory, 4, {std::byte{40}, std::byte{41}, std::byte{42}}, {0b101});
  CHECK(memory[4] == std::byte{40});
  CHECK(memory[5] == std::byte{50});
  CHECK(memory[6] == std::byte{42});
  process.fill(memory, 4);
  REQUIRE(process.count(SessionOrdinal::region_write) == 1);
  auto frames = process.session->frames();
  CHECK(frames[frames.size() - 2].bulk == std::vector<std::byte>{std::byte{50}});
}

TEST_CASE("Changes from the server that do not fit are dropped") {
  RegionProcess process;
  std::byte* memory = process.allocate(8);
  device_pointer(memory);
  process.receive(memory, 6, {std::byte{1}, std::byte{1}, std::byte{1}});
  process.receive(memory, ~uint64_t{0}, {std::byte{1}});
  process.receive(memory, 0, {std::byte{1}}, {1, 1});
  process.receive(memory + 8, 0, {std::byte{1}});
  for (int i = 0; i < 16; ++i) CHECK(memory[i] == std::byte{0});
  CHECK(test::part<client::HostRegions>().sink(wire::kRegionPieceBytes + 1).bytes == 0);
}

TEST_CASE(
    "Copies with a region go by its address, so that they keep their place in the stream and nothing travels twice") {
  RegionProcess process;
  constexpr uint64_t kDevice = 0x7000'0000'0000;
  constexpr uint32_t kMemcpyAsync = 2105;
  address_map().insert({.base = kDevice, .bytes = 4096, .kind = RangeKind::device});
  std::byte* memory = process.allocate(100);
  device_pointer(memory);
  CHECK(custom::cuMemcpyHtoDAsync_v2(kDevice, memory, 100, nullptr, false) == CUDA_SUCCESS);
  CHECK(custom::cuMemcpyDtoHAsync_v2(memory, kDevice, 100, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kMemcpyAsync) == 2);
  CHECK(custom::cuMemcpyHtoD_v2(kDevice, memory, 100, false) == CUDA_SUCCESS);
  CHECK(custom::cuMemcpyDtoH_v2(memory, kDevice, 100, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kMemcpyAsync) == 4);
  std::vector<std::byte> pageable(100);
  CHECK(custom::cuMemcpyHtoDAsync_v2(kDevice, pageable.data(), 100, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kMemcpyAsync) == 4);
  CHECK(process.count(SessionOrdinal::copy_to_device) == 1);
  CHECK(process.count(SessionOrdinal::copy_from_device) == 0);
}

TEST_CASE("Registered memory is a region while it is registered, with what it held before") {
  RegionProcess process;
  std::vector<std::byte> memory(100, std::byte{7});
  REQUIRE(custom::cuMemHostRegister_v2(memory.data(), memory.size(), CU_MEMHOSTREGISTER_DEVICEMAP) == CUDA_SUCCESS);
  CHECK(device_pointer(memory.data()) == reinterpret_cast<CUdeviceptr>(memory.data()));
  process.fill(memory.data(), 4);
  REQUIRE(process.count(SessionOrdinal::region_write) == 1);
  CHECK(custom::cuMemHostUnregister(memory.data()) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_destroy) == 1);
  CHECK(custom::cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory.data()), 1, 4, nullptr, false) ==
        CUDA_SUCCESS);  // the server decides
}

namespace {

// The program's own pages, registered and mapped by the device.
struct RegisteredPages : RegionProcess {
  static constexpr size_t kBytes = 2 * 4096;
  std::byte* memory = nullptr;

  // -1: private memory.
  explicit RegisteredPages(int file = -1) {
    void* mapped =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    REQUIRE(mapped != MAP_FAILED);
    memory = static_cast<std::byte*>(mapped);
    REQUIRE(custom::cuMemHostRegister_v2(memory, kBytes, 0) == CUDA_SUCCESS);
    device_pointer(memory);
  }
  ~RegisteredPages() {
    custom::cuMemHostUnregister(memory);
    munmap(memory, kBytes);
  }
  void protect(int rights) { REQUIRE(mprotect(memory, kBytes, rights) == 0); }
  size_t writes() { return count(SessionOrdinal::region_write); }
};

}  // namespace

TEST_CASE("Registered memory that has lost its rights is read and written as the device does, which needs none") {
  for (int rights : {PROT_NONE, PROT_READ}) {
    CAPTURE(rights);
    RegisteredPages process;
    process.memory[5] = std::byte{50};
    process.protect(rights);
    process.fill(process.memory, 4);
    CHECK(process.writes() == 1);
    process.receive(process.memory, 4, {std::byte{40}, std::byte{41}, std::byte{42}}, {0b101});
    process.fill(process.memory, 4);
    CHECK(process.writes() == 1);
    process.protect(PROT_READ | PROT_WRITE);
    CHECK(process.memory[4] == std::byte{40});
    CHECK(process.memory[5] == std::byte{50});
    CHECK(process.memory[6] == std::byte{42});
    process.fill(process.memory, 4);
    CHECK(process.writes() == 1);
  }
}

TEST_CASE("The device's changes of memory that is registered as read-only do not arrive, and the server undoes them") {
  RegionProcess process;
  std::vector<std::byte> memory(64, std::byte{1});
  REQUIRE(custom::cuMemHostRegister_v2(memory.data(), memory.size(), CU_MEMHOSTREGISTER_READ_ONLY) == CUDA_SUCCESS);
  device_pointer(memory.data());
  process.fill(memory.data(), 4);
  CHECK(process.count(SessionOrdinal::region_write) == 1);
  process.receive(memory.data(), 5, {std::byte{40}});
  CHECK(memory[5] == std::byte{1});
  process.fill(memory.data(), 4);
  CHECK(process.count(SessionOrdinal::region_write) == 2);
  auto frames = process.session->frames();
  CHECK(frames[frames.size() - 2].bulk == std::vector<std::byte>{std::byte{1}});
  CHECK(custom::cuMemHostUnregister(memory.data()) == CUDA_SUCCESS);
}

TEST_CASE("A byte of the device that is in place stays the program's to change while another cannot be written yet") {
  const int file = memfd_create("second page", MFD_CLOEXEC);
  REQUIRE(ftruncate(file, 4096) == 0);
  {
    RegisteredPages process;
    std::byte* const second = process.memory + 4096;
    REQUIRE(mmap(second, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == second);
    process.protect(PROT_READ);
    auto receive = [&](uint64_t second_byte) {
      std::vector<uint8_t> mask(4096 / 8 + 1);
      mask[0] = 1;
      mask[4096 / 8] = uint8_t(second_byte);
      process.receive(process.memory, 4, std::vector<std::byte>(4096 + 1, std::byte{40}), mask);
      CHECK(process.memory[4] == std::byte{40});
      CHECK(second[4] == std::byte{0});
      process.protect(PROT_READ | PROT_WRITE);
      process.memory[4] = std::byte{50};
      process.fill(process.memory, 4);
      CHECK(process.memory[4] == std::byte{50});
    };
    // Bytes between the changed ones are not written, so they may be read-only.
    receive(0);
    process.memory[4] = std::byte{40};
    process.fill(process.memory, 4);
    process.protect(PROT_READ);
    receive(1);
    CHECK(process.writes() == 3);
  }
  close(file);
}

TEST_CASE("The device's changes of a read-only shared mapping arrive once it is writable, and stay the newest") {
  const int file = memfd_create("shared", MFD_CLOEXEC);
  REQUIRE(ftruncate(file, RegisteredPages::kBytes) == 0);
  {
    RegisteredPages process(file);
    process.protect(PROT_READ);
    process.receive(process.memory, 4, {std::byte{40}, std::byte{41}, std::byte{42}}, {0b101});
    process.receive(process.memory, 6, {std::byte{43}});
    process.fill(process.memory, 4);
    CHECK(process.writes() == 0);
    CHECK(process.memory[4] == std::byte{0});
    process.protect(PROT_READ | PROT_WRITE);
    process.memory[5] = std::byte{50};
    process.receive(process.memory, 4, {std::byte{44}});
    CHECK(process.memory[4] == std::byte{44});
    CHECK(process.memory[6] == std::byte{43});
    process.fill(process.memory, 4);
    REQUIRE(process.writes() == 1);
    auto frames = process.session->frames();
    CHECK(frames[frames.size() - 2].bulk == std::vector<std::byte>{std::byte{50}});
  }
  close(file);
}

TEST_CASE("Registered memory behind the end of its file is left alone until the file is long enough again") {
  const int file = memfd_create("short", MFD_CLOEXEC);
  REQUIRE(ftruncate(file, RegisteredPages::kBytes) == 0);
  {
    RegisteredPages process(file);
    REQUIRE(ftruncate(file, 4096) == 0);
    process.fill(process.memory, 4);
    process.receive(process.memory, 5000, {std::byte{7}});
    process.fill(process.memory, 4);
    CHECK(process.writes() == 0);
    REQUIRE(ftruncate(file, RegisteredPages::kBytes) == 0);
    process.fill(process.memory, 4);
    CHECK(process.memory[5000] == std::byte{7});
    CHECK(process.writes() == 0);
  }
  close(file);
}

TEST_CASE("The end of a context ends its regions: registered memory can be registered again, an allocation be freed") {
  RegionProcess process;
  std::byte* allocated = process.allocate(100);
  std::vector<std::byte> registered(100);
  REQUIRE(custom::cuMemHostRegister_v2(registered.data(), registered.size(), 0) == CUDA_SUCCESS);
  device_pointer(allocated);
  device_pointer(registered.data());
  CHECK(custom::cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_destroy) == 2);
  process.make_current(0);
  CHECK(custom::cuMemHostRegister_v2(registered.data(), registered.size(), 0) == CUDA_SUCCESS);
  device_pointer(allocated);
  CHECK(process.count(SessionOrdinal::region_create) == 3);
  CHECK(custom::cuMemFreeHost(allocated) == CUDA_SUCCESS);
}

TEST_CASE("The device pointer of pinned memory is its own address, and asking for the attribute makes no region") {
  RegionProcess process;
  const size_t before = process.session->total();
  std::byte* memory = process.allocate(1u << 20);
  CUdeviceptr pointer = 0;
  CHECK(custom::cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                      reinterpret_cast<CUdeviceptr>(memory + 3)) == CUDA_SUCCESS);
  CHECK(pointer == reinterpret_cast<CUdeviceptr>(memory + 3));
  CHECK(process.session->total() == before);
}

// --- with a server on the same machine ----------------------------------------------------------------------------

namespace {

constexpr size_t kSharedBytes = 1u << 20;

struct SharedProcess : RegionProcess {
  SharedProcess() { session->road = "shm"; }
  ~SharedProcess() {
    for (auto& [number, descriptor] : session->given) close(descriptor);
  }
  size_t shares() const { return session->count(uint32_t(wire::SessionOrdinal::region_share)); }
};

}  // namespace

TEST_CASE("With a server on this machine pinned memory is shared from the beginning, and nothing of it is sent") {
  SharedProcess process;
  std::byte* memory = process.allocate(kSharedBytes - 100);
  REQUIRE(process.shares() == 1);
  REQUIRE(process.session->given.size() == 1);
  auto [number, file] = process.session->given[0];
  process.session->newest().read<schema::RegionShare>([&](auto share) {
    CHECK(share.getAddress() == reinterpret_cast<uint64_t>(memory));
    CHECK(share.getBytes() == kSharedBytes);
    CHECK(share.getDescriptor() == number);
  });
  CHECK((fcntl(file, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW)) == (F_SEAL_SHRINK | F_SEAL_GROW));
  // The same pages on both sides.
  memory[70'000] = std::byte{7};
  std::byte seen{}, written{9};
  REQUIRE(pread(file, &seen, 1, 70'000) == 1);
  CHECK(seen == std::byte{7});
  REQUIRE(pwrite(file, &written, 1, 3) == 1);
  CHECK(memory[3] == std::byte{9});
  CHECK(device_pointer(memory) == reinterpret_cast<CUdeviceptr>(memory));
  process.fill(memory, 100);
  CHECK(process.count(SessionOrdinal::region_create) == 0);
  CHECK(process.count(SessionOrdinal::region_write) == 0);
  CHECK(custom::cuMemFreeHost(memory) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_destroy) == 1);
}

TEST_CASE("A descriptor that was lost with its connection is given again, a bounded number of times") {
  SharedProcess process;
  int lost = 2;
  process.session->answer(uint32_t(wire::SessionOrdinal::region_share), [&](capnp::MessageBuilder& reply) {
    reply.initRoot<schema::Result>().setResult(lost-- > 0 ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS);
  });
  std::byte* memory = process.allocate(100);
  CHECK(process.shares() == 3);
  CHECK(process.session->given.size() == 3);
  CHECK(test::part<client::HostRegions>().holds(reinterpret_cast<uint64_t>(memory), 100));
  lost = 1000;
  memory = process.allocate(100);
  CHECK(process.shares() == 7);
  CHECK_FALSE(test::part<client::HostRegions>().holds(reinterpret_cast<uint64_t>(memory), 100));
}

TEST_CASE(
    "Pinned memory that the server refuses to share, or that cannot be given to it, is what it is over a network") {
  SharedProcess process;
  SUBCASE("refused") {
    process.session->answer_with(uint32_t(wire::SessionOrdinal::region_share), CUDA_ERROR_OUT_OF_MEMORY);
  }
  SUBCASE("not carried") { process.session->gives = false; }
  SUBCASE("another road") { process.session->road = "tcp"; }
  std::byte* memory = process.allocate(kSharedBytes);
  memory[0] = std::byte{1};
  CHECK_FALSE(test::part<client::HostRegions>().holds(reinterpret_cast<uint64_t>(memory), 1));
  CHECK(device_pointer(memory) == reinterpret_cast<CUdeviceptr>(memory));
  CHECK(process.count(SessionOrdinal::region_create) == 1);
}

}  // namespace gpuwire::client
