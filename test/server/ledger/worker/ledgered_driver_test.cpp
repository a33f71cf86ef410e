// Every way to take memory, on the software device: it is charged, refused over the quota, and released in the end.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "protocol/fatbin/fatbin.hpp"
#include "server/ledger/worker/graph_bytes.hpp"
#include "test/server/ledger/worker/software_ledger.hpp"
#include "test/support/becomes.hpp"

namespace gpuwire::server {
namespace {

using test::kDeviceColumns;
using test::kMiB;
using test::software_driver;

constexpr uint64_t kLimit = 256 * kMiB;

// Returns a container of one entry of compressed PTX that claims this length without having it.
std::vector<uint8_t> compressed_container(uint64_t claimed_bytes) {
  constexpr size_t kEntryHeaderBytes = 64, kPayloadBytes = 16;
  constexpr uint64_t kZstd = 0x8000;
  std::vector<uint8_t> bytes(fatbin::kContainerHeaderBytes + kEntryHeaderBytes + kPayloadBytes);
  auto put = [&](size_t at, auto value) { std::memcpy(bytes.data() + at, &value, sizeof value); };
  put(0, fatbin::kContainerMagic);
  put(4, uint16_t{1});
  put(6, uint16_t{fatbin::kContainerHeaderBytes});
  put(8, uint64_t{kEntryHeaderBytes + kPayloadBytes});
  const size_t entry = fatbin::kContainerHeaderBytes;
  put(entry, uint16_t{1});
  put(entry + 4, uint32_t{kEntryHeaderBytes});
  put(entry + 8, uint64_t{kPayloadBytes});
  put(entry + 16, uint32_t{kPayloadBytes});
  put(entry + 28, uint32_t{80});
  put(entry + 40, kZstd);
  put(entry + 56, claimed_bytes);
  return bytes;
}

class Fixture : public test::SoftwareLedger {
 public:
  Fixture() : SoftwareLedger(kLimit, kLimit) {
    REQUIRE(cuda.cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
  }
  ~Fixture() {
    CHECK(cuda.cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
    check_that_nothing_is_left();
  }

  // Waits until the thread that polls pools has noticed it.
  bool soon(const std::function<bool()>& condition) const { return test::becomes(condition); }

  CUcontext context = nullptr;
};

TEST_CASE_FIXTURE(Fixture, "plain, pitched and managed memory is charged and given back") {
  CUdeviceptr plain = 0, pitched = 0, managed = 0;
  size_t pitch = 0;
  CHECK(cuda.cuMemAlloc_v2(&plain, 1000) == CUDA_SUCCESS);
  CHECK(used() == 1000);
  CHECK(cuda.cuMemAllocPitch_v2(&pitched, &pitch, 100, 10, 4) == CUDA_SUCCESS);
  CHECK(used() == 1000 + pitch * 10);
  CHECK(cuda.cuMemAllocManaged(&managed, 5000, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  CHECK(used() == 6000 + pitch * 10);
  CHECK(cuda.cuMemFree_v2(plain) == CUDA_SUCCESS);
  CHECK(cuda.cuMemFree_v2(plain) != CUDA_SUCCESS);
  CHECK(cuda.cuMemFree_v2(pitched) == CUDA_SUCCESS);
  CHECK(used() == 5000);
  CHECK(cuda.cuMemFree_v2(managed) == CUDA_SUCCESS);
  CHECK(used() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a call over the quota answers out of memory, and the next one that fits is served") {
  CUdeviceptr most = 0, more = 0;
  size_t pitch = 0;
  CHECK(cuda.cuMemAlloc_v2(&most, kLimit - 10) == CUDA_SUCCESS);
  CHECK(cuda.cuMemAlloc_v2(&more, 11) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda.cuMemAllocPitch_v2(&more, &pitch, 1, 1, 4) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda.cuMemAllocManaged(&more, 11, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda.cuMemAllocAsync(&more, 11, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
  CUDA_ARRAY_DESCRIPTOR flat{.Width = 64, .Height = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
  CUarray array = nullptr;
  CHECK(cuda.cuArrayCreate_v2(&array, &flat) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(used() == kLimit - 10);
  CHECK(cuda.cuMemAlloc_v2(&more, 10) == CUDA_SUCCESS);
  CHECK(cuda.cuMemAlloc_v2(&more, SIZE_MAX) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE_FIXTURE(Fixture,
                  "managed memory beyond the rest of the device is charged to the host, unless a quota bounds it") {
  CUdeviceptr most = 0, managed = 0, refused = 0, rest = 0;
  REQUIRE(cuda.cuMemAlloc_v2(&most, kLimit - kMiB) == CUDA_SUCCESS);
  CHECK(cuda.cuMemAllocManaged(&managed, 3 * kMiB, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_OUT_OF_MEMORY);
  // From here on other tenants' memory bounds the tenant, and no quota does.
  page->column[kDeviceColumns[0]].limit = kPageBytesMax;
  CHECK(cuda.cuMemAlloc_v2(&refused, 3 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
  const uint64_t host_before = host();
  CHECK(cuda.cuMemAllocManaged(&managed, 3 * kMiB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  CHECK(used() == kLimit - kMiB);
  CHECK(host() == host_before + 3 * kMiB);
  // Other memory still gets the rest of the device.
  CHECK(cuda.cuMemAlloc_v2(&rest, kMiB) == CUDA_SUCCESS);
  CHECK(cuda.cuMemFree_v2(rest) == CUDA_SUCCESS);
  // Host memory has a bound, too, and what is refused is charged nowhere.
  CHECK(cuda.cuMemAllocManaged(&refused, kLimit, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda.cuMemAllocManaged(&refused, SIZE_MAX, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda.cuMemAllocManaged(&refused, 3 * kMiB, 77) == CUDA_ERROR_INVALID_VALUE);
  CHECK(host() == host_before + 3 * kMiB);
  CHECK(cuda.cuMemFree_v2(managed) == CUDA_SUCCESS);
  CHECK(cuda.cuMemFree_v2(managed) != CUDA_SUCCESS);
  CHECK(used() == kLimit - kMiB);
  CHECK(host() == host_before);
  // A context that ends releases it.
  CHECK(cuda.cuMemAllocManaged(&managed, 3 * kMiB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "an allocation that the driver refuses is not charged") {
  CUdeviceptr none = 0;
  CHECK(cuda.cuMemAlloc_v2(&none, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuda.cuMemAllocManaged(&none, 100, 77) == CUDA_ERROR_INVALID_VALUE);
  CHECK(used() == 0);
}

TEST_CASE_FIXTURE(Fixture, "each device has its own account") {
  CUcontext other = nullptr;
  CUdeviceptr there = 0;
  REQUIRE(cuda.cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  REQUIRE(cuda.cuCtxSetCurrent(other) == CUDA_SUCCESS);
  CHECK(cuda.cuMemAlloc_v2(&there, 4096) == CUDA_SUCCESS);
  CHECK(used(0) == 0);
  CHECK(used(1) == 4096);
  // The end of the context frees its objects.
  CHECK(cuda.cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS);
  CHECK(used(1) == 0);
  CHECK(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "a context is charged before it is made, and once for all who hold a primary one") {
  page->column[kDeviceColumns[1]].context_bytes = 100 * kMiB;
  CUcontext one = nullptr, two = nullptr, three = nullptr;
  CHECK(cuda.cuDevicePrimaryCtxRetain(&one, 1) == CUDA_SUCCESS);
  CHECK(cuda.cuDevicePrimaryCtxRetain(&one, 1) == CUDA_SUCCESS);
  CHECK(used(1) == 100 * kMiB);
  CHECK(cuda.cuCtxCreate_v2(&two, 0, 1) == CUDA_SUCCESS);
  CHECK(used(1) == 200 * kMiB);
  CHECK(cuda.cuCtxCreate_v2(&three, 0, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda.cuCtxDestroy_v2(two) == CUDA_SUCCESS);
  CHECK(cuda.cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS);
  CHECK(used(1) == 100 * kMiB);
  CHECK(cuda.cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS);
  CHECK(used(1) == 0);
  CHECK(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture,
                  "what is allocated in a green context stays charged when that is destroyed, for it stays there") {
  CUgreenCtx green = nullptr;
  CUcontext inside = nullptr;
  CUdeviceptr memory = 0, left = 0;
  REQUIRE(cuda.cuGreenCtxCreate(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
  REQUIRE(cuda.cuCtxFromGreenCtx(&inside, green) == CUDA_SUCCESS);
  REQUIRE(cuda.cuCtxSetCurrent(inside) == CUDA_SUCCESS);
  CHECK(cuda.cuMemAlloc_v2(&memory, 200 * kMiB) == CUDA_SUCCESS);
  CHECK(cuda.cuMemAlloc_v2(&left, kMiB) == CUDA_SUCCESS);
  CHECK(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CHECK(cuda.cuGreenCtxDestroy(green) == CUDA_SUCCESS);
  CHECK(used() == 201 * kMiB);
  CUdeviceptr more = 0;
  CHECK(cuda.cuMemAlloc_v2(&more, 100 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda.cuMemFree_v2(memory) == CUDA_SUCCESS);
  CHECK(used() == kMiB);  // until the primary context ends
  CHECK(cuda.cuGreenCtxDestroy(green) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuda.cuGreenCtxCreate(&green, nullptr, 1, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE_FIXTURE(Fixture, "a limit of a context is charged by what it is more than before") {
  size_t heap = 0;
  REQUIRE(cuda.cuCtxGetLimit(&heap, CU_LIMIT_MALLOC_HEAP_SIZE) == CUDA_SUCCESS);
  CHECK(cuda.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap + 10 * kMiB) == CUDA_SUCCESS);
  CHECK(used() == 10 * kMiB);
  CHECK(cuda.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap + 2 * kLimit) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap) == CUDA_SUCCESS);
  CHECK(used() == 0);
  CHECK(cuda.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap + 5 * kMiB) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "physical memory is charged until nobody holds it and it is mapped nowhere") {
  const uint64_t bytes = 4 * kMiB;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle handle = 0, again = 0;
  CUdeviceptr range = 0;
  REQUIRE(cuda.cuMemCreate(&handle, bytes, &properties, 0) == CUDA_SUCCESS);
  CHECK(used() == bytes);
  REQUIRE(cuda.cuMemAddressReserve(&range, 2 * bytes, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuda.cuMemMap(range, bytes, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cuda.cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(used() == bytes);
  CHECK(cuda.cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(range)) == CUDA_SUCCESS);
  CHECK(cuda.cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(range)) == CUDA_SUCCESS);
  CHECK(cuda.cuMemUnmap(range, bytes) == CUDA_SUCCESS);
  CHECK(cuda.cuMemRelease(again) == CUDA_SUCCESS);
  CHECK(used() == bytes);
  CHECK(cuda.cuMemRelease(again) == CUDA_SUCCESS);
  CHECK(used() == 0);
  CHECK(cuda.cuMemCreate(&handle, 2 * kLimit, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {7}};
  CHECK(cuda.cuMemCreate(&handle, bytes, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda.cuMemAddressFree(range, 2 * bytes) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(
    Fixture, "stream-ordered memory is charged when it is asked for, and given back when the stream has freed it") {
  CUstream stream = nullptr;
  CUdeviceptr one = 0, two = 0;
  REQUIRE(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuda.cuMemAllocAsync(&one, 10 * kMiB, stream) == CUDA_SUCCESS);
  CHECK(used() == 10 * kMiB);
  // A stream that is blocked at a host function frees nothing.
  std::atomic<bool> go{false};
  REQUIRE(cuda.cuLaunchHostFunc(
              stream,
              [](void* flag) {
                while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
              },
              &go) == CUDA_SUCCESS);
  REQUIRE(cuda.cuMemFreeAsync(one, stream) == CUDA_SUCCESS);
  CHECK(cuda.cuMemAllocAsync(&two, kLimit, stream) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(used() == 10 * kMiB);
  go = true;
  CHECK(soon([&] { return used() == 0; }));
  // Freed memory is available to a request at once, however stale the count was.
  CHECK(cuda.cuMemAllocAsync(&two, kLimit, stream) == CUDA_SUCCESS);
  REQUIRE(cuda.cuMemFreeAsync(two, stream) == CUDA_SUCCESS);
  REQUIRE(cuda.cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cuda.cuMemAllocAsync(&two, kLimit, stream) == CUDA_SUCCESS);
  CHECK(cuda.cuMemFree_v2(two) == CUDA_SUCCESS);
  CHECK(soon([&] { return used() == 0; }));
  CHECK(cuda.cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "a pool that is destroyed with memory out of it stays charged until that is freed") {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {1}};
  CUmemoryPool pool = nullptr;
  CUdeviceptr memory = 0;
  REQUIRE(cuda.cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  REQUIRE(cuda.cuMemAllocFromPoolAsync(&memory, 3 * kMiB, pool, nullptr) == CUDA_SUCCESS);
  CHECK(used(1) == 3 * kMiB);
  CHECK(cuda.cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  CHECK(used(1) == 3 * kMiB);
  CHECK(cuda.cuMemFreeAsync(memory, nullptr) == CUDA_SUCCESS);
  CHECK(soon([&] { return used(1) == 0; }));
}

TEST_CASE_FIXTURE(Fixture, "arrays are charged by their elements") {
  CUDA_ARRAY_DESCRIPTOR flat{.Width = 64, .Height = 32, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
  CUDA_ARRAY3D_DESCRIPTOR deep{
      .Width = 16, .Height = 8, .Depth = 4, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 2};
  CUDA_ARRAY3D_DESCRIPTOR pyramid{.Width = 16, .Height = 16, .Format = CU_AD_FORMAT_HALF, .NumChannels = 1};
  CUarray one = nullptr, two = nullptr;
  CUmipmappedArray three = nullptr;
  REQUIRE(cuda.cuArrayCreate_v2(&one, &flat) == CUDA_SUCCESS);
  CHECK(used() == 64 * 32 * 16);
  REQUIRE(cuda.cuArray3DCreate_v2(&two, &deep) == CUDA_SUCCESS);
  CHECK(used() == 64 * 32 * 16 + 16 * 8 * 4 * 2);
  CHECK(cuda.cuArrayDestroy(one) == CUDA_SUCCESS);
  CHECK(cuda.cuArrayDestroy(two) == CUDA_SUCCESS);
  CHECK(used() == 0);
  if (cuda.cuMipmappedArrayCreate(&three, &pyramid, 3) == CUDA_SUCCESS) {
    CHECK(used() == 2 * (256 + 64 + 16));
    CHECK(cuda.cuMipmappedArrayDestroy(three) == CUDA_SUCCESS);
  }
  deep.Width = deep.Height = deep.Depth = SIZE_MAX;
  CHECK(cuda.cuArray3DCreate_v2(&two, &deep) == CUDA_ERROR_OUT_OF_MEMORY);
}

std::string program(uint64_t bytes) {
  return ".version 8.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .b8 big[" + std::to_string(bytes) +
         "];\n.visible .entry none() { ret; }\n";
}

TEST_CASE_FIXTURE(Fixture, "modules and libraries are charged with the variables in them") {
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  std::string fits = program(16 * kMiB), does_not = program(2 * kLimit);
  REQUIRE(cuda.cuModuleLoadData(&module, fits.c_str()) == CUDA_SUCCESS);
  CHECK(used() == 16 * kMiB + fits.size());
  CHECK(cuda.cuModuleUnload(module) == CUDA_SUCCESS);
  CHECK(used() == 0);
  CHECK(cuda.cuModuleLoadDataEx(&module, does_not.c_str(), 0, nullptr, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuda.cuLibraryLoadData(&library, fits.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  CHECK(used() == 16 * kMiB + fits.size());
  CHECK(cuda.cuLibraryUnload(library) == CUDA_SUCCESS);
  CHECK(cuda.cuLibraryLoadData(&library, does_not.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0) ==
        CUDA_ERROR_OUT_OF_MEMORY);
}

// Returns the memory in use by the driver, behind the ledger.
uint64_t taken_here() {
  size_t free = 0, total = 0;
  REQUIRE(software_driver().cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
  return total - free;
}

TEST_CASE_FIXTURE(Fixture, "a comment in a declaration hides nothing of what it declares") {
  const std::string hidden =
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .global /* ; */ .align 8 .b8 big[" +
      std::to_string(2 * kLimit) + "];\n.visible .entry none() { ret; }\n";
  const uint64_t before = taken_here();
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CHECK(cuda.cuModuleLoadData(&module, hidden.c_str()) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda.cuLibraryLoadData(&library, hidden.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0) ==
        CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(used() == 0);
  CHECK(taken_here() == before);
}

TEST_CASE_FIXTURE(Fixture, "an image that the driver refuses gets the driver's error, readable or not") {
  CUmodule module = nullptr;
  const std::string wrong = ".version 8.0\n.target sm_80\n.address_size 64\n.global .b8 a[1 2];\n";
  CHECK(cuda.cuModuleLoadData(&module, wrong.c_str()) == CUDA_ERROR_INVALID_PTX);
  CHECK(used() == 0);
  CHECK(host() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a library is charged in each context where it is used, on each device") {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUcontext second = nullptr, other = nullptr;
  CUdeviceptr address = 0;
  size_t size = 0;
  const std::string text = program(16 * kMiB);
  const uint64_t one = 16 * kMiB + text.size();
  REQUIRE(cuda.cuLibraryLoadData(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuda.cuLibraryGetKernel(&kernel, library, "none") == CUDA_SUCCESS);
  CHECK(cuda.cuLibraryGetGlobal(&address, &size, library, "big") == CUDA_SUCCESS);
  CHECK(used(0) == one);
  REQUIRE(cuda.cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS);
  CHECK(cuda.cuLibraryGetGlobal(&address, &size, library, "big") == CUDA_SUCCESS);
  CHECK(used(0) == 2 * one);
  CHECK(cuda.cuCtxDestroy_v2(second) == CUDA_SUCCESS);
  CHECK(used(0) == one);
  REQUIRE(cuda.cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  REQUIRE(cuda.cuCtxSetCurrent(other) == CUDA_SUCCESS);
  CHECK(used(1) == 0);
  // A kernel in a function's place.
  CHECK(cuda.cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) ==
        CUDA_SUCCESS);
  CHECK(cuda.cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(used(1) == one);
  CHECK(cuda.cuLibraryUnload(library) == CUDA_SUCCESS);
  CHECK(used(0) == 0);
  CHECK(used(1) == 0);
  CHECK(cuda.cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS);
  CHECK(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "where a library finds no room on a second device the call that needs it there is refused") {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUcontext other = nullptr;
  CUdeviceptr address = 0;
  size_t size = 0;
  CUfunction function = nullptr;
  const std::string text = program(16 * kMiB);
  REQUIRE(cuda.cuLibraryLoadData(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuda.cuLibraryGetKernel(&kernel, library, "none") == CUDA_SUCCESS);
  page->column[kDeviceColumns[1]].limit = 8 * kMiB;
  REQUIRE(cuda.cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  REQUIRE(cuda.cuCtxSetCurrent(other) == CUDA_SUCCESS);
  CHECK(cuda.cuLibraryGetGlobal(&address, &size, library, "big") == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda.cuKernelGetFunction(&function, kernel) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(used(1) == 0);
  CHECK(taken_here() == 0);
  CHECK(cuda.cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS);
  CHECK(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CHECK(cuda.cuLibraryUnload(library) == CUDA_SUCCESS);
}

// A graph of so many nodes.
CUgraph chain(const DriverTable& cuda, unsigned count) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr, before = nullptr;
  REQUIRE(cuda.cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  for (unsigned i = 0; i < count; ++i) {
    REQUIRE(cuda.cuGraphAddEmptyNode(&node, graph, &before, before ? 1 : 0) == CUDA_SUCCESS);
    before = node;
  }
  return graph;
}

TEST_CASE_FIXTURE(Fixture, "graphs and their instances are charged by their nodes, and refused beyond the limit") {
  CUgraph graph = chain(cuda, 1000);
  const uint64_t nodes = host();
  CHECK(nodes >= 1000 * kGraphNodeHostBytes);
  std::vector<CUgraphExec> execs;
  CUgraphExec exec = nullptr;
  CUresult result = CUDA_SUCCESS;
  while ((result = cuda.cuGraphInstantiateWithFlags(&exec, graph, 0)) == CUDA_SUCCESS) execs.push_back(exec);
  CHECK(result == CUDA_ERROR_OUT_OF_MEMORY);
  // 5.9 MiB each.
  CHECK(execs.size() >= 30);
  CHECK(execs.size() <= kLimit / (1000 * kExecNodeHostBytes));
  CHECK(host() <= kLimit);
  for (CUgraphExec each : execs) CHECK(cuda.cuGraphExecDestroy(each) == CUDA_SUCCESS);
  CHECK(host() == nodes);
  CHECK(cuda.cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(host() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a graph in a graph is charged with all that is copied, so none grows without a limit") {
  CUgraph graph = chain(cuda, 10);
  CUgraphNode node = nullptr;
  CUresult result = CUDA_SUCCESS;
  unsigned doublings = 0;
  for (; result == CUDA_SUCCESS && doublings < 30; ++doublings) {
    CUgraph twice = nullptr;
    REQUIRE(cuda.cuGraphCreate(&twice, 0) == CUDA_SUCCESS);
    for (unsigned i = 0; i < 2 && result == CUDA_SUCCESS; ++i)
      result = cuda.cuGraphAddChildGraphNode(&node, twice, nullptr, 0, graph);
    CHECK(cuda.cuGraphDestroy(graph) == CUDA_SUCCESS);
    graph = twice;
  }
  CHECK(result == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(doublings <= 15);
  CHECK(host() > kLimit / 8);
  CHECK(cuda.cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(host() == 0);
}

TEST_CASE_FIXTURE(Fixture,
                  "nodes that are destroyed, edges that are removed and clones that go are no longer charged") {
  CUgraph graph = chain(cuda, 3), clone = nullptr;
  const uint64_t three = host();
  CUgraphNode nodes[3]{};
  size_t count = 3;
  REQUIRE(cuda.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS);
  CHECK(cuda.cuGraphAddDependencies_v2(graph, &nodes[0], &nodes[2], nullptr, 1) == CUDA_SUCCESS);
  CHECK(host() == three + kGraphEdgeHostBytes);
  CHECK(cuda.cuGraphClone(&clone, graph) == CUDA_SUCCESS);
  CHECK(host() == 2 * (three + kGraphEdgeHostBytes));
  CHECK(cuda.cuGraphDestroy(clone) == CUDA_SUCCESS);
  CHECK(cuda.cuGraphRemoveDependencies_v2(graph, &nodes[0], &nodes[2], nullptr, 1) == CUDA_SUCCESS);
  CHECK(host() == three);
  CHECK(cuda.cuGraphDestroyNode(nodes[1]) == CUDA_SUCCESS);
  CHECK(host() == 2 * kGraphNodeHostBytes);
  CHECK(cuda.cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(host() == 0);
}

TEST_CASE_FIXTURE(Fixture, "nodes of a capture are charged when it ends") {
  CUstream stream = nullptr;
  CUgraph graph = nullptr, given = chain(cuda, 2);
  CUdeviceptr memory = 0;
  const uint64_t two = host();
  auto capture = [&](unsigned fills) {
    for (unsigned i = 0; i < fills; ++i) REQUIRE(cuda.cuMemsetD8Async(memory, 1, 100, stream) == CUDA_SUCCESS);
    return cuda.cuStreamEndCapture(stream, &graph);
  };
  REQUIRE(cuda.cuMemAlloc_v2(&memory, 100) == CUDA_SUCCESS);
  REQUIRE(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuda.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(capture(50) == CUDA_SUCCESS);
  CHECK(host() >= two + 50 * kGraphNodeHostBytes);
  CHECK(cuda.cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(host() == two);
  REQUIRE(cuda.cuStreamBeginCaptureToGraph(stream, given, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED) ==
          CUDA_SUCCESS);
  REQUIRE(capture(50) == CUDA_SUCCESS);
  CHECK(host() >= two + 50 * kGraphNodeHostBytes);
  CHECK(host() < two + 60 * kGraphNodeHostBytes);
  CHECK(cuda.cuGraphDestroy(given) == CUDA_SUCCESS);
  CHECK(host() == 0);
  // Beyond the limit there is no graph.
  page->column[kHostColumn].limit = 20 * kGraphNodeHostBytes;
  REQUIRE(cuda.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(capture(50) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(host() == 0);
  CHECK(cuda.cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "memory of graphs is charged, made as a node or captured") {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr, freed = nullptr;
  CUgraphExec exec = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  params.bytesize = 8 * kMiB;
  REQUIRE(cuda.cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuda.cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &params) == CUDA_SUCCESS);
  CHECK(used() == 8 * kMiB);
  REQUIRE(cuda.cuGraphAddMemFreeNode(&freed, graph, &node, 1, params.dptr) == CUDA_SUCCESS);
  params.bytesize = kLimit;
  CHECK(cuda.cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &params) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuda.cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  CHECK(cuda.cuGraphLaunch(exec, nullptr) == CUDA_SUCCESS);
  CHECK(cuda.cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(used() == 8 * kMiB);
  CHECK(cuda.cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CHECK(cuda.cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(soon([&] { return cuda.cuDeviceGraphMemTrim(0) == CUDA_SUCCESS && used() == 0; }));

  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  REQUIRE(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuda.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuda.cuMemAllocAsync(&memory, kMiB, stream) == CUDA_SUCCESS);
  REQUIRE(cuda.cuMemFreeAsync(memory, stream) == CUDA_SUCCESS);
  REQUIRE(cuda.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  CHECK(used() == kMiB);
  CHECK(cuda.cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(soon([&] { return cuda.cuDeviceGraphMemTrim(0) == CUDA_SUCCESS && used() == 0; }));
  CHECK(cuda.cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "pinned memory of the server has a quota of its own") {
  void *one = nullptr, *two = nullptr;
  std::vector<char> mine(1 << 16);
  REQUIRE(cuda.cuMemHostAlloc(&one, 1 * kMiB, 0) == CUDA_SUCCESS);
  REQUIRE(cuda.cuMemAllocHost_v2(&two, 2 * kMiB) == CUDA_SUCCESS);
  REQUIRE(cuda.cuMemHostRegister_v2(mine.data(), mine.size(), 0) == CUDA_SUCCESS);
  CHECK(host() == 3 * kMiB + mine.size());
  CHECK(used() == 0);
  void* more = nullptr;
  CHECK(cuda.cuMemHostAlloc(&more, kLimit, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda.cuMemFreeHost(one) == CUDA_SUCCESS);
  CHECK(cuda.cuMemFreeHost(two) == CUDA_SUCCESS);
  CHECK(cuda.cuMemHostUnregister(mine.data()) == CUDA_SUCCESS);
  CHECK(host() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a program sees its tenant's quota in place of the device") {
  size_t free_bytes = 0, total = 0;
  CUdeviceptr memory = 0;
  CHECK(cuda.cuDeviceTotalMem_v2(&total, 0) == CUDA_SUCCESS);
  CHECK(total == kLimit);
  REQUIRE(cuda.cuMemAlloc_v2(&memory, 6 * kMiB) == CUDA_SUCCESS);
  // Another session of the tenant.
  page->column[kDeviceColumns[0]].used[1] = 50 * kMiB;
  CHECK(cuda.cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS);
  CHECK(total == kLimit);
  CHECK(free_bytes == kLimit - 56 * kMiB);
  CHECK(cuda.cuMemAlloc_v2(&memory, free_bytes + 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda.cuMemAlloc_v2(&memory, free_bytes) == CUDA_SUCCESS);
  page->column[kDeviceColumns[0]].limit = UINT64_MAX;
  CHECK(cuda.cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS);
  CHECK(total == size_t{4} << 30);
}

TEST_CASE_FIXTURE(Fixture,
                  "what the driver keeps of modules in this machine's memory is charged until they are unloaded") {
  const std::string text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n";
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  REQUIRE(cuda.cuModuleLoadData(&module, text.c_str()) == CUDA_SUCCESS);
  REQUIRE(cuda.cuLibraryLoadData(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  CHECK(host() == 2 * text.size());
  CHECK(cuda.cuModuleUnload(module) == CUDA_SUCCESS);
  CHECK(cuda.cuLibraryUnload(library) == CUDA_SUCCESS);
  CHECK(host() == 0);
  // The compiler would take more than the tenant's remaining memory.
  page->column[kHostColumn].limit = 2 * text.size();
  CHECK(cuda.cuModuleLoadData(&module, text.c_str()) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(host() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a fat binary is charged by what it claims to hold before anything is decompressed") {
  std::vector<uint8_t> bomb = compressed_container(kLimit);
  CUmodule module = nullptr;
  CHECK(cuda.cuModuleLoadData(&module, bomb.data()) == CUDA_ERROR_OUT_OF_MEMORY);
  bomb = compressed_container(fatbin::kDecompressedBytesMax + 1);
  CHECK(cuda.cuModuleLoadData(&module, bomb.data()) == CUDA_ERROR_INVALID_IMAGE);
  CHECK(host() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a larger buffer for device printf is charged on both sides") {
  size_t fresh = 0;
  REQUIRE(cuda.cuCtxGetLimit(&fresh, CU_LIMIT_PRINTF_FIFO_SIZE) == CUDA_SUCCESS);
  REQUIRE(cuda.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, fresh + 8 * kMiB) == CUDA_SUCCESS);
  CHECK(used() == 8 * kMiB);
  CHECK(host() == 8 * kMiB);
  page->column[kHostColumn].limit = 9 * kMiB;
  CHECK(cuda.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, fresh + 10 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(used() == 8 * kMiB);
  REQUIRE(cuda.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, fresh) == CUDA_SUCCESS);
  CHECK(host() == 0);
}

}  // namespace
}  // namespace gpuwire::server
