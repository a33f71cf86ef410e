// Blocks leave the software device for real: what is unmapped is lost there.
#include "server/driver/evictable/eviction.hpp"

#include <atomic>
#include <map>
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

constexpr unsigned kThreads = 3;

// A driver whose calls fail when it is their turn; functions of a table have no object. The copying threads count down
// together, and nothing else is published through the number: relaxed.
std::map<std::string, std::atomic<int>> calls_until_failure;

bool fails(const char* name) {
  auto found = calls_until_failure.find(name);
  return found != calls_until_failure.end() && found->second.fetch_sub(1, std::memory_order_relaxed) == 1;
}

DriverTable failing_driver() {
  DriverTable table = software_driver();
  table.cuMemCreate = [](CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                         unsigned long long flags) {
    return fails("create") ? CUDA_ERROR_OUT_OF_MEMORY : software_driver().cuMemCreate(handle, bytes, properties, flags);
  };
  table.cuMemMap = [](CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags) {
    return fails("map") ? CUDA_ERROR_UNKNOWN : software_driver().cuMemMap(address, bytes, offset, handle, flags);
  };
  table.cuMemSetAccess = [](CUdeviceptr address, size_t bytes, const CUmemAccessDesc* entries, size_t count) {
    return fails("access") ? CUDA_ERROR_OUT_OF_MEMORY
                           : software_driver().cuMemSetAccess(address, bytes, entries, count);
  };
  table.cuMemUnmap = [](CUdeviceptr address, size_t bytes) {
    return fails("unmap") ? CUDA_ERROR_UNKNOWN : software_driver().cuMemUnmap(address, bytes);
  };
  table.cuMemcpyDtoH_v2 = [](void* to, CUdeviceptr from, size_t bytes) {
    return fails("out") ? CUDA_ERROR_UNKNOWN : software_driver().cuMemcpyDtoH_v2(to, from, bytes);
  };
  table.cuMemcpyHtoD_v2 = [](CUdeviceptr to, const void* from, size_t bytes) {
    return fails("in") ? CUDA_ERROR_UNKNOWN : software_driver().cuMemcpyHtoD_v2(to, from, bytes);
  };
  table.cuMemHostAlloc = [](void** memory, size_t bytes, unsigned flags) {
    return fails("pinned") ? CUDA_ERROR_OUT_OF_MEMORY : software_driver().cuMemHostAlloc(memory, bytes, flags);
  };
  return table;
}

// Two blocks, each with contents of its own.
struct Fixture {
  DriverTable library = failing_driver();
  SoftwareDriver driver{true, library};
  Eviction eviction{*driver.layer, kThreads};
  CUdeviceptr first = driver.allocate(), second = driver.allocate(kBlockBytes / 2);

  Fixture() {
    driver.fill(first, kBlockBytes, 1);
    driver.fill(second, kBlockBytes / 2, 2);
  }
  ~Fixture() { calls_until_failure.clear(); }
  bool whole() { return driver.has(first, kBlockBytes, 1) && driver.has(second, kBlockBytes / 2, 2); }
  // From here on one call fails.
  void fail(const char* name, int at_call) {
    calls_until_failure.clear();
    calls_until_failure[name] = at_call;
  }
};

TEST_CASE("blocks go to the host, their memory is free meanwhile, and they come back at the same addresses") {
  Fixture fixture;
  const uint64_t before = fixture.driver.free_bytes();
  for (int round = 0; round < 3; ++round) {
    CHECK(fixture.eviction.out().result == EvictionResult::done);
    CHECK(fixture.eviction.is_out());
    CHECK(fixture.driver.free_bytes() == kDeviceBytes);
    CHECK_FALSE(fixture.whole());
    CHECK(fixture.eviction.out().result == EvictionResult::done);  // an order that is given again
    CHECK(fixture.eviction.back().result == EvictionResult::done);
    CHECK_FALSE(fixture.eviction.is_out());
    CHECK(fixture.driver.free_bytes() == before);
    CHECK(fixture.whole());
    CHECK(fixture.eviction.back().result == EvictionResult::done);
  }
}

TEST_CASE("a session without blocks has nothing to move") {
  SoftwareDriver driver(true);
  Eviction eviction(*driver.layer, kThreads);
  CHECK(eviction.out().result == EvictionResult::done);
  CHECK(eviction.is_out());
  CHECK(eviction.back().result == EvictionResult::done);
  CHECK_FALSE(eviction.is_out());
}

TEST_CASE("the attributes of a block and the access of peers are the same after its return") {
  Fixture fixture;
  SoftwareDriver& driver = fixture.driver;
  REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[1]) == CUDA_SUCCESS);
  REQUIRE(driver.cuda.cuCtxEnablePeerAccess(driver.contexts[0], 0) == CUDA_SUCCESS);
  REQUIRE(driver.cuda.cuCtxSetCurrent(driver.contexts[0]) == CUDA_SUCCESS);
  unsigned on = 1;
  REQUIRE(driver.cuda.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, fixture.first) == CUDA_SUCCESS);
  auto attribute = [&](CUpointer_attribute which, CUdeviceptr address) {
    uint64_t value = 0;
    CHECK(driver.cuda.cuPointerGetAttribute(&value, which, address) == CUDA_SUCCESS);
    return value;
  };
  auto facts = [&] {
    std::vector<uint64_t> all;
    for (CUpointer_attribute which :
         {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
          CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS})
      for (const CUdeviceptr address : {fixture.first + 9 * kMiB, fixture.second})
        all.push_back(attribute(which, address));
    for (int device : {0, 1}) {
      const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
      unsigned long long flags = 77;
      CHECK(software_driver().cuMemGetAccess(&flags, &location, fixture.first) == CUDA_SUCCESS);
      all.push_back(flags);
    }
    return all;
  };
  const std::vector<uint64_t> before = facts();
  REQUIRE(fixture.eviction.out().result == EvictionResult::done);
  REQUIRE(fixture.eviction.back().result == EvictionResult::done);
  CHECK(facts() == before);
}

TEST_CASE("a copy to the host that fails changes nothing") {
  for (int call = 1; call <= 3; ++call) {
    Fixture fixture;
    const uint64_t before = fixture.driver.free_bytes();
    fixture.fail("out", call);
    const EvictionOutcome outcome = fixture.eviction.out();
    CHECK(outcome.result == EvictionResult::refused);
    CHECK(outcome.why.find("could not be copied") != std::string::npos);
    CHECK_FALSE(fixture.eviction.is_out());
    CHECK(fixture.driver.free_bytes() == before);
    CHECK(fixture.whole());
  }
}

TEST_CASE("a block that cannot be unmapped brings the others back") {
  for (int call = 1; call <= 5; ++call) {
    Fixture fixture;
    const uint64_t before = fixture.driver.free_bytes();
    fixture.fail("unmap", call);
    CHECK(fixture.eviction.out().result == EvictionResult::refused);
    CHECK_FALSE(fixture.eviction.is_out());
    CHECK(fixture.driver.free_bytes() == before);
    CHECK(fixture.whole());
  }
}

TEST_CASE("without room on the device the contents stay with the host, and nothing of them is on the device") {
  for (const char* call : {"create", "access"}) {
    for (int number = 1; number <= (call[0] == 'c' ? 5 : 2); ++number) {
      Fixture fixture;
      REQUIRE(fixture.eviction.out().result == EvictionResult::done);
      fixture.fail(call, number);
      CHECK(fixture.eviction.back().result == EvictionResult::no_room);
      CHECK(fixture.eviction.is_out());
      CHECK(fixture.driver.free_bytes() == kDeviceBytes);
      CHECK(fixture.eviction.back().result == EvictionResult::done);
      CHECK(fixture.whole());
    }
  }
}

TEST_CASE("a block that cannot be mapped or filled again is lost, with the reason") {
  for (const char* call : {"map", "in"}) {
    Fixture fixture;
    REQUIRE(fixture.eviction.out().result == EvictionResult::done);
    fixture.fail(call, 2);
    const EvictionOutcome outcome = fixture.eviction.back();
    CHECK(outcome.result == EvictionResult::lost);
    CHECK_FALSE(outcome.why.empty());
  }
}

TEST_CASE("without pinned memory the copies are made from pageable memory") {
  Fixture fixture;
  fixture.fail("pinned", 1);
  CHECK(fixture.eviction.out().result == EvictionResult::done);
  fixture.fail("pinned", 2);
  CHECK(fixture.eviction.back().result == EvictionResult::done);
  CHECK(fixture.whole());
}

TEST_CASE("a block that was freed and one that is new are moved as they are") {
  Fixture fixture;
  REQUIRE(fixture.eviction.out().result == EvictionResult::done);
  REQUIRE(fixture.eviction.back().result == EvictionResult::done);
  REQUIRE(fixture.driver.cuda.cuMemFree_v2(fixture.first) == CUDA_SUCCESS);
  const CUdeviceptr third = fixture.driver.allocate();
  fixture.driver.fill(third, kBlockBytes, 3);
  CHECK(fixture.eviction.out().result == EvictionResult::done);
  CHECK(fixture.driver.free_bytes() == kDeviceBytes);
  CHECK(fixture.eviction.back().result == EvictionResult::done);
  CHECK(fixture.driver.has(third, kBlockBytes, 3));
  CHECK(fixture.driver.has(fixture.second, kBlockBytes / 2, 2));
}

}  // namespace
}  // namespace gpuwire::server
