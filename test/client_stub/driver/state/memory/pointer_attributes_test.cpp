#include "client_stub/driver/state/memory/pointer_attributes.hpp"

#include <array>
#include <cstring>
#include <vector>

#include "schema/api_pool.capnp.h"
#include "test/client_stub/driver/state/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

constexpr uint64_t kBase = 0x7000'0000'0000;

template <class Value>
Value attribute(CUpointer_attribute which, CUdeviceptr pointer) {
  // Sentinels on both sides: an attribute must not be written wider than it is.
  struct {
    uint64_t before = 0x1111111111111111;
    Value value{};
    uint32_t after = 0x22222222;
  } out;
  std::memset(&out.value, 0x5a, sizeof out.value);
  CHECK(custom::cuPointerGetAttribute(&out.value, which, pointer) == CUDA_SUCCESS);
  CHECK(out.before == 0x1111111111111111);
  CHECK(out.after == 0x22222222);
  return out.value;
}

CUresult set_access(CUdeviceptr address, size_t bytes, CUmemAccess_flags flags, int device = 0) {
  const CUmemAccessDesc right{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, .flags = flags};
  return custom::cuMemSetAccess(address, bytes, &right, 1);
}

// Whether kernels have an address for the memory, which cuMemGetAddressRange must answer alike.
bool is_found(CUdeviceptr address) {
  CUdeviceptr pointer = 1, base = 0;
  const CUresult result = custom::cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address);
  CHECK(pointer == (result == CUDA_SUCCESS ? address : 0));
  CHECK((result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE));
  CHECK(custom::cuMemGetAddressRange_v2(&base, nullptr, address) ==
        (result == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND));
  return result == CUDA_SUCCESS;
}

// Two mappings of one granule each, beside each other at kBase.
constexpr uint64_t kGranule = 2u << 20;
void map_two() {
  address_map().insert({.base = kBase, .bytes = 2 * kGranule, .kind = RangeKind::mapped});
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(custom::cuMemCreate(&handle, kGranule, &prop, 0) == CUDA_SUCCESS);
  REQUIRE(custom::cuMemMap(kBase, kGranule, 0, handle, 0) == CUDA_SUCCESS);
  REQUIRE(custom::cuMemMap(kBase + kGranule, kGranule, 0, handle, 0) == CUDA_SUCCESS);
}

constexpr uint32_t kMemSetAccess = 2306;                                            // protocol/api/virtual_memory.toml
constexpr uint32_t kDefaultPool = 2410, kDevicePool = 2411, kMemAllocAsync = 2400;  // protocol/api/pool.toml

}  // namespace

TEST_CASE("Attributes of device memory come from the map, without a question to the server") {
  test::DeviceProcess process;
  address_map().insert({.base = kBase, .bytes = 4096, .kind = RangeKind::device, .device = 0, .context = 77});
  size_t before = process.session->total();
  CUdeviceptr inside = kBase + 100;
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_CONTEXT, inside) == 77);
  CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside) == CU_MEMORYTYPE_DEVICE);
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside) == inside);
  CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_IS_MANAGED, inside) == 0);
  CHECK(attribute<int32_t>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside) == 0);
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside) == kBase);
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside) == 4096);
  CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_MAPPED, inside) == 1);
  CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, inside) == 1);
  CHECK(process.session->total() == before);
  uint64_t value = 1;
  CHECK(custom::cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_HOST_POINTER, inside) == CUDA_ERROR_INVALID_VALUE);
  CHECK(value == 0);
}

TEST_CASE("Pinned host memory is host memory, with the same address on the device") {
  test::DeviceProcess process;
  void* pinned = nullptr;
  REQUIRE(custom::cuMemAllocHost_v2(&pinned, 1u << 20) == CUDA_SUCCESS);
  auto address = CUdeviceptr(reinterpret_cast<uint64_t>(pinned));
  CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CU_MEMORYTYPE_HOST);
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_HOST_POINTER, address + 5) == address + 5);
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, address) != 0);
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address + 5) == address + 5);
  CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address + 5) == 0);
}

TEST_CASE("Each mapping of a reserved range has its own attributes, and its gaps are memory that CUDA does not know") {
  test::DeviceProcess process;
  constexpr uint64_t kPart = 2u << 20;
  address_map().insert({.base = kBase, .bytes = 8 * kPart, .kind = RangeKind::mapped});
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(custom::cuMemCreate(&handle, 2 * kPart, &prop, 0) == CUDA_SUCCESS);
  REQUIRE(custom::cuMemMap(kBase + 3 * kPart, 2 * kPart, 0, handle, 0) == CUDA_SUCCESS);
  REQUIRE(custom::cuMemMap(kBase + 5 * kPart, kPart, 0, handle, 0) == CUDA_SUCCESS);
  const CUdeviceptr inside = kBase + 4 * kPart + 10;
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, inside) == kBase + 3 * kPart);
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, inside) == 2 * kPart);
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside) == kBase);
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside) == 8 * kPart);
  CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside) == CU_MEMORYTYPE_DEVICE);
  CHECK(attribute<int32_t>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside) == 0);
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, inside) !=
        attribute<uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, kBase + 5 * kPart));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  REQUIRE(set_access(kBase + 3 * kPart, 3 * kPart, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == CUDA_SUCCESS);
  CHECK(custom::cuMemGetAddressRange_v2(&base, &bytes, inside) == CUDA_SUCCESS);
  CHECK(base == kBase + 3 * kPart);
  CHECK(bytes == 2 * kPart);
  uint32_t on = 1;
  CHECK(custom::cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, inside) == CUDA_SUCCESS);
  CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, inside) == 1);
  auto unknown = [](CUdeviceptr address) {
    uint32_t type = 0;
    CHECK(custom::cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_ERROR_INVALID_VALUE);
    size_t bytes = 0;
    CHECK(custom::cuMemGetAddressRange_v2(nullptr, &bytes, address) == CUDA_ERROR_NOT_FOUND);
  };
  unknown(kBase);
  CHECK(custom::cuMemUnmap(kBase + 3 * kPart, 3 * kPart) == CUDA_SUCCESS);
  unknown(inside);
  unknown(kBase + 5 * kPart);
}

TEST_CASE("A mapping has a device address while a device may access it, and its other attributes all the time") {
  test::DeviceProcess process;
  map_two();
  auto flags = [](CUdeviceptr address) { return attribute<uint32_t>(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address); };
  CHECK_FALSE(is_found(kBase + 5));
  CHECK(flags(kBase + 5) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
  CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, kBase + 5) == CU_MEMORYTYPE_DEVICE);
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, kBase + 5) == kGranule);
  const auto id = attribute<uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, kBase);

  REQUIRE(set_access(kBase, kGranule, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == CUDA_SUCCESS);
  CHECK(is_found(kBase + 5));
  CHECK(flags(kBase + 5) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
  CHECK_FALSE(is_found(kBase + kGranule));

  REQUIRE(set_access(kBase, 2 * kGranule, CU_MEM_ACCESS_FLAGS_PROT_READ) == CUDA_SUCCESS);
  CHECK(is_found(kBase));
  CHECK(is_found(kBase + kGranule));
  CHECK(flags(kBase) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ);

  REQUIRE(set_access(kBase + kGranule, kGranule, CU_MEM_ACCESS_FLAGS_PROT_NONE) == CUDA_SUCCESS);
  CHECK(is_found(kBase));
  CHECK_FALSE(is_found(kBase + kGranule));
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, kBase) == id);
}

TEST_CASE("Access that the server's driver refuses changes nothing, and of two devices one is enough") {
  test::DeviceProcess process(2);
  map_two();
  process.session->answer_with(kMemSetAccess, CUDA_ERROR_INVALID_VALUE);
  CHECK(set_access(kBase, kGranule, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(is_found(kBase));
  process.session->answer_with(kMemSetAccess, CUDA_SUCCESS);
  for (int device : {0, 1})
    REQUIRE(set_access(kBase, kGranule, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, device) == CUDA_SUCCESS);
  REQUIRE(set_access(kBase, kGranule, CU_MEM_ACCESS_FLAGS_PROT_NONE, 0) == CUDA_SUCCESS);
  CHECK(is_found(kBase));
  REQUIRE(set_access(kBase, kGranule, CU_MEM_ACCESS_FLAGS_PROT_NONE, 1) == CUDA_SUCCESS);
  CHECK_FALSE(is_found(kBase));
}

TEST_CASE("Memory that is mapped again has no access rights, whatever it had before") {
  test::DeviceProcess process;
  map_two();
  REQUIRE(set_access(kBase, 2 * kGranule, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == CUDA_SUCCESS);
  REQUIRE(custom::cuMemUnmap(kBase, 2 * kGranule) == CUDA_SUCCESS);
  map_two();
  CHECK_FALSE(is_found(kBase));
}

TEST_CASE("Asked for several attributes at once, a mapping without access has the device address 0") {
  test::DeviceProcess process;
  map_two();
  uint64_t device = 9;
  uint32_t type = 9;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  void* data[] = {&device, &type};
  CHECK(custom::cuPointerGetAttributes(2, attributes, data, kBase) == CUDA_SUCCESS);
  CHECK(device == 0);
  CHECK(type == CU_MEMORYTYPE_DEVICE);
}

TEST_CASE("Memory that CUDA knows nothing of is an invalid value for one attribute and defaults for several") {
  test::DeviceProcess process;
  int own = 0;
  auto address = CUdeviceptr(reinterpret_cast<uint64_t>(&own));
  uint64_t scratch = 9;
  CHECK(custom::cuPointerGetAttribute(&scratch, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_ERROR_INVALID_VALUE);
  CHECK(scratch == 9);
  uint64_t context = 9, device = 9, host = 9;
  uint32_t type = 9, managed = 9;
  int32_t ordinal = 9;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_CONTEXT,        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_HOST_POINTER,   CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* data[] = {&context, &type, &host, &device, &ordinal, &managed};
  CHECK(custom::cuPointerGetAttributes(6, attributes, data, address) == CUDA_SUCCESS);
  CHECK(context == 0);
  CHECK(type == 0);
  CHECK(host == address);
  CHECK(device == 0);
  CHECK(ordinal == CU_DEVICE_INVALID);
  CHECK(managed == 0);
}

TEST_CASE("Only the synchronising attribute can be set, and only on device memory") {
  test::DeviceProcess process;
  address_map().insert({.base = kBase, .bytes = 4096, .kind = RangeKind::device});
  uint32_t on = 1;
  CHECK(custom::cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, kBase) == CUDA_SUCCESS);
  CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, kBase) == 1);
  CHECK(custom::cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_IS_MANAGED, kBase) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, kBase + 4096) == CUDA_ERROR_INVALID_VALUE);
}

namespace {

struct Asked {
  CUresult single, several;
  uint64_t single_value, several_value;
  bool operator==(const Asked&) const = default;
};
constexpr uint64_t kUntouched = 0xabababab;

Asked ask(CUpointer_attribute which, CUdeviceptr pointer) {
  uint64_t one[2] = {kUntouched, 0}, all[2] = {kUntouched, 0};
  void* data = all;
  const CUresult single = custom::cuPointerGetAttribute(one, which, pointer);
  return {single, custom::cuPointerGetAttributes(1, &which, &data, pointer), one[0], all[0]};
}
Asked ask(int which, CUdeviceptr pointer) { return ask(CUpointer_attribute(which), pointer); }

}  // namespace

TEST_CASE("Memory of pools and of graphs belongs to no context, and that of a pool names it") {
  test::DeviceProcess process;
  address_map().insert(
      {.base = kBase, .bytes = 4096, .kind = RangeKind::pool, .device = 0, .context = 77, .owner = 0x55});
  address_map().insert({.base = kBase + 4096, .bytes = 4096, .kind = RangeKind::graph, .device = 0, .context = 77});
  for (CUdeviceptr memory : {kBase, kBase + 4096})
    CHECK(ask(CU_POINTER_ATTRIBUTE_CONTEXT, memory) == Asked{CUDA_SUCCESS, CUDA_SUCCESS, 0, 0});
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, kBase) == 0x55);
  CHECK(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, kBase + 4096) == 0);
}

TEST_CASE("Memory from the pool of the device names that pool") {
  test::DeviceProcess process;
  process.session->serve(kMemAllocAsync, [](const test::SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
    reply.initRoot<schema::CuMemAllocAsyncResults>().setDptr(kBase);
  });
  CUmemoryPool pool = nullptr;
  REQUIRE(custom::cuDeviceGetMemPool(&pool, 0) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(custom::cuMemAllocAsync(&memory, 64, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kDefaultPool) == 0);
  const size_t asked = process.session->count(kDevicePool);
  uint64_t named = 0;
  CHECK(custom::cuPointerGetAttribute(&named, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory) == CUDA_SUCCESS);
  CHECK(process.session->count(kDefaultPool) == 1);
  CHECK(process.session->count(kDevicePool) == asked);
}

TEST_CASE("Peer tokens are zeros for memory of the device and none for host memory, and not asked for with others") {
  test::DeviceProcess process;
  void* pinned = nullptr;
  REQUIRE(custom::cuMemAllocHost_v2(&pinned, 4096) == CUDA_SUCCESS);
  address_map().insert({.base = kBase, .bytes = 4096, .kind = RangeKind::device});
  constexpr auto kTokens = CU_POINTER_ATTRIBUTE_P2P_TOKENS;
  CHECK(ask(kTokens, kBase) == Asked{CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, 0, kUntouched});
  CHECK(ask(kTokens, CUdeviceptr(reinterpret_cast<uint64_t>(pinned))) ==
        Asked{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE, 0, kUntouched});
  CHECK(ask(kTokens, 0x1234000) == Asked{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE, kUntouched, kUntouched});
}

TEST_CASE("Copies synchronise of managed memory, and of memory of the device that peer tokens were asked for") {
  test::DeviceProcess process;
  void* pinned = nullptr;
  REQUIRE(custom::cuMemAllocHost_v2(&pinned, 4096) == CUDA_SUCCESS);
  auto host = CUdeviceptr(reinterpret_cast<uint64_t>(pinned));
  CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, host) == 0);
  // The device may write that, too.
  CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, host) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
  CUdeviceptr next = kBase;
  for (RangeKind kind : {RangeKind::device, RangeKind::pool, RangeKind::managed, RangeKind::graph}) {
    address_map().insert({.base = next, .bytes = 4096, .kind = kind});
    CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, next) == (kind == RangeKind::managed));
    std::array<uint64_t, 2> tokens{};
    REQUIRE(custom::cuPointerGetAttribute(tokens.data(), CU_POINTER_ATTRIBUTE_P2P_TOKENS, next) == CUDA_SUCCESS);
    CHECK(attribute<uint32_t>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, next) == 1);
    next += 4096;
  }
}

TEST_CASE("A reserved range without memory is known by its range alone, which is not written of other memory") {
  test::DeviceProcess process;
  constexpr CUdeviceptr kReserved = kBase + (uint64_t{1} << 32);  // where no other test maps anything
  address_map().insert({.base = kReserved, .bytes = 4 * kGranule, .kind = RangeKind::mapped});
  auto unknown = [](uint64_t value) { return Asked{CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, kUntouched, value}; };
  CHECK(ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, kReserved + 5) == unknown(kReserved));
  CHECK(ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, kReserved + 5) == unknown(4 * kGranule));
  CHECK(ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 0x1234000) == unknown(kUntouched));
  CHECK(ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 0x1234000) == unknown(kUntouched));
  for (int other : {1, 2, 3, 6, 7, 8, 10, 13, 14, 15, 16, 17, 18, 19, 20, 21}) {
    CHECK(ask(other, kReserved) == unknown(0));
    CHECK(ask(other, 0x1234000) == unknown(0));
  }
}

TEST_CASE("Without initialisation there are no attributes") {
  uint64_t value = 0;
  CHECK(custom::cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_CONTEXT, kBase) == CUDA_ERROR_NOT_INITIALIZED);
}

}  // namespace gpuwire::client
