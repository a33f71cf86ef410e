// Each case asks a driver the same questions with the layer of evictable memory in front of it and without: the answers
// are the same, but for those of legacy IPC.
#include "server/driver/evictable/evictable_memory.hpp"

#include <array>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "test/server/driver/evictable/software_driver.hpp"

namespace gpuwire::server {
namespace {

using test::kBlockBytes;
using test::kDeviceBytes;
using test::kMiB;
using test::SoftwareDriver;
using test::software_driver;

using Answers = std::vector<std::string>;

// The answers of a case, in words. Addresses are offsets from the block's.
class Notes {
 public:
  void add(const std::string& question, int64_t answer) { answers.push_back(question + ": " + std::to_string(answer)); }
  Answers answers;
};

void compare(const std::function<void(SoftwareDriver&, Notes&)>& ask) {
  Notes native, layered;
  {
    SoftwareDriver driver(false);
    ask(driver, native);
  }
  {
    SoftwareDriver driver(true);
    ask(driver, layered);
  }
  CHECK(!native.answers.empty());
  CHECK(native.answers == layered.answers);
}

TEST_CASE("allocations have the native errors, alignment and sizes") {
  compare([](SoftwareDriver& driver, Notes& notes) {
    const uint64_t before = driver.free_bytes();
    CUdeviceptr address = 0;
    notes.add("of nothing", driver.cuda.cuMemAlloc_v2(&address, 0));
    notes.add("nowhere", driver.cuda.cuMemAlloc_v2(nullptr, kBlockBytes));
    notes.add("of too much", driver.cuda.cuMemAlloc_v2(&address, kDeviceBytes + 2 * kMiB));
    notes.add("of all addresses", driver.cuda.cuMemAlloc_v2(&address, SIZE_MAX));
    notes.add("a block", driver.cuda.cuMemAlloc_v2(&address, kBlockBytes));
    notes.add("aligned", int64_t(address % 512));
    notes.add("takes", int64_t(before - driver.free_bytes()));
    CUdeviceptr rest = 0;
    notes.add("the rest", driver.cuda.cuMemAlloc_v2(&rest, driver.free_bytes()));
    notes.add("nothing is left", int64_t(driver.free_bytes()));
    notes.add("one more", driver.cuda.cuMemAlloc_v2(&address, kBlockBytes));
    notes.add("a free", driver.cuda.cuMemFree_v2(rest));
    notes.add("gives back", int64_t(driver.free_bytes()));
  });
}

TEST_CASE("a block's memory is whole across its chunks, and a free gives it back once") {
  compare([](SoftwareDriver& driver, Notes& notes) {
    const uint64_t before = driver.free_bytes();
    const CUdeviceptr block = driver.allocate();
    driver.fill(block, kBlockBytes, 7);
    notes.add("right", driver.has(block, kBlockBytes, 7));
    notes.add("beyond its end", driver.cuda.cuMemsetD8_v2(block, 1, kBlockBytes + 1));
    notes.add("set across chunks", driver.cuda.cuMemsetD8_v2(block + kMiB, 1, 8 * kMiB));
    notes.add("inside", driver.cuda.cuMemFree_v2(block + 512));
    notes.add("free", driver.cuda.cuMemFree_v2(block));
    notes.add("again", driver.cuda.cuMemFree_v2(block));
    notes.add("of nothing", driver.cuda.cuMemFree_v2(0));
    notes.add("given back", int64_t(before - driver.free_bytes()));
    notes.add("read afterwards", driver.has(block, 512, 7));
  });
}

TEST_CASE("a block is one allocation for all questions about its addresses") {
  compare([](SoftwareDriver& driver, Notes& notes) {
    const CUdeviceptr block = driver.allocate(), other = driver.allocate();
    for (const uint64_t offset : {uint64_t{0}, 5 * kMiB, kBlockBytes - 1}) {
      CUdeviceptr begin = 0;
      size_t bytes = 0;
      notes.add("range", driver.cuda.cuMemGetAddressRange_v2(&begin, &bytes, block + offset));
      notes.add("begin", int64_t(begin - block));
      notes.add("bytes", int64_t(bytes));
      for (int attribute = CU_POINTER_ATTRIBUTE_CONTEXT; attribute <= CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID;
           ++attribute) {
        const auto which = static_cast<CUpointer_attribute>(attribute);
        if (which == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) continue;
        std::array<uint64_t, 2> value{}, in_list{};
        void* place = in_list.data();
        CUpointer_attribute list = which;
        const std::string name = "attribute " + std::to_string(attribute);
        notes.add(name, driver.cuda.cuPointerGetAttribute(value.data(), which, block + offset));
        notes.add(name + " in a list", driver.cuda.cuPointerGetAttributes(1, &list, &place, block + offset));
        const bool number = which == CU_POINTER_ATTRIBUTE_BUFFER_ID || which == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID;
        const bool address = which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                             which == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
                             which == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR;
        if (which == CU_POINTER_ATTRIBUTE_CONTEXT)
          notes.add("owner", value[0] == reinterpret_cast<uint64_t>(driver.contexts[0]));
        else if (!number) notes.add("value", int64_t(address ? value[0] - block : value[0]));
        notes.add("same in a list", value[0] == in_list[0]);
      }
    }
    unsigned long long first = 0, inside = 0, another = 0;
    driver.cuda.cuPointerGetAttribute(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, block);
    driver.cuda.cuPointerGetAttribute(&inside, CU_POINTER_ATTRIBUTE_BUFFER_ID, block + 9 * kMiB);
    driver.cuda.cuPointerGetAttribute(&another, CU_POINTER_ATTRIBUTE_BUFFER_ID, other);
    notes.add("one id", first == inside);
    notes.add("of its own", first != another);
    notes.add("nowhere", driver.cuda.cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_BUFFER_ID, block));
    notes.add("no range", driver.cuda.cuMemGetAddressRange_v2(nullptr, nullptr, block));
  });
}

TEST_CASE("synchronous memory operations are set for the whole block") {
  compare([](SoftwareDriver& driver, Notes& notes) {
    const CUdeviceptr block = driver.allocate();
    auto sync = [&](uint64_t offset) {
      unsigned on = 77;
      driver.cuda.cuPointerGetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block + offset);
      return int64_t(on);
    };
    unsigned on = 1;
    notes.add("set", driver.cuda.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block + 5 * kMiB));
    notes.add("at its begin", sync(0));
    notes.add("at its end", sync(kBlockBytes - 1));
    on = 0;
    notes.add("reset", driver.cuda.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
    notes.add("at its end", sync(kBlockBytes - 1));
    notes.add("another", driver.cuda.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_BUFFER_ID, block));
  });
}

TEST_CASE("calls of virtual memory refuse a block, whatever part of it they name") {
  compare([](SoftwareDriver& driver, Notes& notes) {
    const CUdeviceptr block = driver.allocate();
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle own = 0, handle = 0;
    REQUIRE(driver.cuda.cuMemCreate(&own, 2 * kMiB, &properties, 0) == CUDA_SUCCESS);
    for (const uint64_t offset : {uint64_t{0}, 4 * kMiB}) {
      unsigned long long flags = 0;
      notes.add("unmap", driver.cuda.cuMemUnmap(block + offset, 2 * kMiB));
      notes.add("unmap all", driver.cuda.cuMemUnmap(block, kBlockBytes));
      notes.add("access", driver.cuda.cuMemSetAccess(block + offset, 2 * kMiB, &access, 1));
      notes.add("get access", driver.cuda.cuMemGetAccess(&flags, &access.location, block + offset));
      notes.add("free addresses", driver.cuda.cuMemAddressFree(block + offset, kBlockBytes - offset));
      notes.add("map", driver.cuda.cuMemMap(block + offset, 2 * kMiB, 0, own, 0));
      notes.add("retain", driver.cuda.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(block + offset)));
    }
    driver.fill(block, kBlockBytes, 3);
    notes.add("whole", driver.has(block, kBlockBytes, 3));
    notes.add("release", driver.cuda.cuMemRelease(own));
  });
}

TEST_CASE("a program's own virtual memory passes the layer unchanged") {
  compare([](SoftwareDriver& driver, Notes& notes) {
    const CUdeviceptr block = driver.allocate();
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUmemGenericAllocationHandle handle = 0, retained = 0;
    CUdeviceptr address = 0;
    notes.add("create", driver.cuda.cuMemCreate(&handle, 4 * kMiB, &properties, 0));
    notes.add("reserve", driver.cuda.cuMemAddressReserve(&address, 4 * kMiB, 0, 0, 0));
    notes.add("map", driver.cuda.cuMemMap(address, 4 * kMiB, 0, handle, 0));
    notes.add("access", driver.cuda.cuMemSetAccess(address, 4 * kMiB, &access, 1));
    notes.add("retain", driver.cuda.cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(address)));
    notes.add("the same", handle == retained);
    driver.fill(address, 4 * kMiB, 9);
    notes.add("copy between", driver.cuda.cuMemcpyDtoD_v2(block, address, 4 * kMiB));
    notes.add("right", driver.has(block, 4 * kMiB, 9));
    notes.add("unmap", driver.cuda.cuMemUnmap(address, 4 * kMiB));
    notes.add("release", driver.cuda.cuMemRelease(handle));
    notes.add("release", driver.cuda.cuMemRelease(handle));
    notes.add("free", driver.cuda.cuMemAddressFree(address, 4 * kMiB));
  });
}

TEST_CASE("without a context, and in one that has ended, an allocation and a free fail as natively") {
  compare([](SoftwareDriver& driver, Notes& notes) {
    const CUdeviceptr block = driver.allocate();
    CUdeviceptr address = 0;
    CUcontext own = nullptr;
    REQUIRE(driver.cuda.cuCtxCreate_v4(&own, nullptr, 0, 0) == CUDA_SUCCESS);
    REQUIRE(driver.cuda.cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
    notes.add("allocation without", driver.cuda.cuMemAlloc_v2(&address, kBlockBytes));
    notes.add("free without", driver.cuda.cuMemFree_v2(block));
    REQUIRE(driver.cuda.cuCtxSetCurrent(own) == CUDA_SUCCESS);
    REQUIRE(driver.cuda.cuCtxPushCurrent_v2(driver.contexts[0]) == CUDA_SUCCESS);
    REQUIRE(driver.cuda.cuCtxDestroy_v2(own) == CUDA_SUCCESS);
    REQUIRE(driver.cuda.cuCtxPopCurrent_v2(&own) == CUDA_SUCCESS);
    notes.add("allocation in an ended one", driver.cuda.cuMemAlloc_v2(&address, kBlockBytes));
    notes.add("free in an ended one", driver.cuda.cuMemFree_v2(block));
    REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[0]) == CUDA_SUCCESS);
  });
}

TEST_CASE("a block may be freed in another context, and ends with its own") {
  compare([](SoftwareDriver& driver, Notes& notes) {
    const uint64_t before = driver.free_bytes();
    const CUdeviceptr block = driver.allocate();
    REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[1]) == CUDA_SUCCESS);
    notes.add("free on the other device", driver.cuda.cuMemFree_v2(block));
    REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[0]) == CUDA_SUCCESS);
    notes.add("given back", int64_t(before - driver.free_bytes()));
    CUcontext own = nullptr;
    REQUIRE(driver.cuda.cuCtxCreate_v4(&own, nullptr, 0, 0) == CUDA_SUCCESS);
    const CUdeviceptr of_own = driver.allocate();
    CUcontext owner = nullptr;
    driver.cuda.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, of_own);
    notes.add("its owner", owner == own);
    REQUIRE(driver.cuda.cuCtxDestroy_v2(own) == CUDA_SUCCESS);
    REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[0]) == CUDA_SUCCESS);
    notes.add("given back", int64_t(before - driver.free_bytes()));
    notes.add("free afterwards", driver.cuda.cuMemFree_v2(of_own));
  });
}

TEST_CASE("the end of a primary context ends its blocks, and leaves those of others") {
  compare([](SoftwareDriver& driver, Notes& notes) {
    const CUdeviceptr block = driver.allocate();
    REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[1]) == CUDA_SUCCESS);
    const CUdeviceptr other = driver.allocate();
    driver.fill(other, kBlockBytes, 5);
    notes.add("release", driver.cuda.cuDevicePrimaryCtxRelease_v2(0));
    notes.add("the other one", driver.has(other, kBlockBytes, 5));
    notes.add("free afterwards", driver.cuda.cuMemFree_v2(block));
    REQUIRE(driver.cuda.cuDevicePrimaryCtxRetain(&driver.contexts[0], 0) == CUDA_SUCCESS);
    REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[0]) == CUDA_SUCCESS);
    notes.add("all memory", int64_t(driver.free_bytes()));
  });
}

TEST_CASE("blocks are copied between devices with peer access and without") {
  compare([](SoftwareDriver& driver, Notes& notes) {
    const CUdeviceptr here = driver.allocate();
    driver.fill(here, kBlockBytes, 11);
    REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[1]) == CUDA_SUCCESS);
    const CUdeviceptr there = driver.allocate();
    auto copy = [&] {
      return driver.cuda.cuMemcpyPeer(there, driver.contexts[1], here, driver.contexts[0], kBlockBytes);
    };
    notes.add("without", copy());
    notes.add("right", driver.has(there, kBlockBytes, 11));
    notes.add("enable", driver.cuda.cuCtxEnablePeerAccess(driver.contexts[0], 0));
    notes.add("again", driver.cuda.cuCtxEnablePeerAccess(driver.contexts[0], 0));
    notes.add("with", copy());
    notes.add("disable", driver.cuda.cuCtxDisablePeerAccess(driver.contexts[0]));
    notes.add("again", driver.cuda.cuCtxDisablePeerAccess(driver.contexts[0]));
    notes.add("without", copy());
    REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[0]) == CUDA_SUCCESS);
  });
}

// The access that the software device's own table says a device has to an address.
unsigned long long access_of(int device, CUdeviceptr address) {
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
  unsigned long long flags = 77;
  software_driver().cuMemGetAccess(&flags, &location, address);
  return flags;
}

TEST_CASE("a device has access to the blocks of a context while peer access to it is enabled") {
  SoftwareDriver driver(true);
  const CUdeviceptr before = driver.allocate();
  CHECK(access_of(0, before) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK(access_of(1, before) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
  REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[1]) == CUDA_SUCCESS);
  REQUIRE(driver.cuda.cuCtxEnablePeerAccess(driver.contexts[0], 0) == CUDA_SUCCESS);
  REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[0]) == CUDA_SUCCESS);
  const CUdeviceptr after = driver.allocate();
  for (const CUdeviceptr block : {before, after})
    for (const uint64_t offset : {uint64_t{0}, kBlockBytes - 1})
      CHECK(access_of(1, block + offset) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[1]) == CUDA_SUCCESS);
  REQUIRE(driver.cuda.cuCtxDisablePeerAccess(driver.contexts[0]) == CUDA_SUCCESS);
  REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[0]) == CUDA_SUCCESS);
  for (const CUdeviceptr block : {before, after}) {
    CHECK(access_of(1, block) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CHECK(access_of(0, block) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
}

TEST_CASE("small allocations are the driver's, and large ones are not") {
  SoftwareDriver driver(true);
  CUmemGenericAllocationHandle handle = 0;
  auto is_virtual = [&](CUdeviceptr address) {
    const bool retained =
        software_driver().cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address)) == CUDA_SUCCESS;
    if (retained) software_driver().cuMemRelease(handle);
    return retained;
  };
  CHECK_FALSE(is_virtual(driver.allocate(kEvictableBytesMin - 1)));
  CHECK(is_virtual(driver.allocate(kEvictableBytesMin)));
}

TEST_CASE("an allocation for which virtual memory has no room is the driver's") {
  DriverTable full = software_driver();
  full.cuMemCreate = [](CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  };
  SoftwareDriver driver(true, full);
  const CUdeviceptr block = driver.allocate();
  CHECK_FALSE(driver.layer->touches(block, 1));
  CHECK(driver.cuda.cuMemFree_v2(block) == CUDA_SUCCESS);
  CHECK(driver.free_bytes() == kDeviceBytes);
}

TEST_CASE("legacy IPC makes no handle of a block, and still makes handles of other memory") {
  DriverTable with_ipc = software_driver();
  with_ipc.cuIpcGetMemHandle = [](CUipcMemHandle*, CUdeviceptr) { return CUDA_SUCCESS; };
  SoftwareDriver driver(true, with_ipc);
  CUipcMemHandle handle{};
  CHECK(driver.cuda.cuIpcGetMemHandle(&handle, driver.allocate()) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(driver.cuda.cuIpcGetMemHandle(&handle, driver.allocate(kMiB)) == CUDA_SUCCESS);
  const CUdeviceptr block = driver.allocate();
  unsigned capable = 77;
  CHECK(driver.cuda.cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, block) ==
        CUDA_SUCCESS);
  CHECK(capable == 0);
}

TEST_CASE("a block that is freed during a capture is released after the capture, which it does not end") {
  bool capturing = false;
  SoftwareDriver driver(true, software_driver(), [&] { return capturing; });
  const CUdeviceptr block = driver.allocate();
  CUstream stream = nullptr;
  REQUIRE(driver.cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  REQUIRE(driver.cuda.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
  REQUIRE(driver.cuda.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  capturing = true;
  CHECK(driver.cuda.cuMemFree_v2(block) == CUDA_SUCCESS);
  CHECK(driver.cuda.cuMemFree_v2(block) == CUDA_ERROR_INVALID_VALUE);
  CHECK(driver.cuda.cuMemUnmap(block, kBlockBytes) == CUDA_ERROR_INVALID_VALUE);
  CUgraph graph = nullptr;
  CHECK(driver.cuda.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  CHECK(graph != nullptr);
  capturing = false;
  CHECK(driver.free_bytes() == kDeviceBytes);
  CHECK(driver.cuda.cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(driver.cuda.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
}

TEST_CASE("a stream-ordered free releases a block when the stream has passed it") {
  compare([](SoftwareDriver& driver, Notes& notes) {
    const CUdeviceptr block = driver.allocate();
    notes.add("inside", driver.cuda.cuMemFreeAsync(block + 512, nullptr));
    notes.add("free", driver.cuda.cuMemFreeAsync(block, nullptr));
    notes.add("again", driver.cuda.cuMemFreeAsync(block, nullptr));
    notes.add("synchronise", driver.cuda.cuCtxSynchronize());
    notes.add("given back", int64_t(driver.free_bytes()));
  });
}

}  // namespace
}  // namespace gpuwire::server
