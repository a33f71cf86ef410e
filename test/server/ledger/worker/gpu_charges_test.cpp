// An H200's memory for small allocations, streams and frames of kernels, with a driver that only counts.
#include <map>

#include <doctest/doctest.h>

#include "server/driver_table.hpp"
#include "server/ledger/worker/ledgered_driver.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kChunk = 2 * kMiB;

// One at a time.
struct FakeGpu {
  CUdeviceptr next = 64 * kChunk;
  std::map<CUfunction, int> frames;
  size_t stack = 1024;
  bool active = false;
  unsigned launches = 0;
  uint64_t streams = 0;
  // A graph is represented by its depth: the innermost has an allocation, each other one child.
  uint64_t instances = 0, reserved = 0;
};

FakeGpu* gpu = nullptr;

// A graph of kernels, in a chain or side by side, for the instances that take a device's memory.
constexpr uint64_t kDepth = 100, kAllocation = 64 * kMiB, kKernels = 1000, kParameters = 40;
const auto kChain = reinterpret_cast<CUgraph>(0xc000), kSideBySide = reinterpret_cast<CUgraph>(0xd000);

uint64_t number(const void* handle) { return reinterpret_cast<uint64_t>(handle); }
bool is_nested(CUgraph graph) { return number(graph) <= kDepth; }

void fake_graphs(DriverTable& table) {
  table.cuGraphGetNodes = [](CUgraph graph, CUgraphNode* nodes, size_t* count) {
    *count = is_nested(graph) ? 1 : kKernels;
    for (size_t i = 0; nodes && i < *count; ++i) nodes[i] = reinterpret_cast<CUgraphNode>(number(graph) + i);
    return CUDA_SUCCESS;
  };
  table.cuGraphNodeGetType = [](CUgraphNode node, CUgraphNodeType* type) {
    *type = number(node) > kDepth ? CU_GRAPH_NODE_TYPE_KERNEL
            : number(node) > 1    ? CU_GRAPH_NODE_TYPE_GRAPH
                                  : CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    return CUDA_SUCCESS;
  };
  table.cuGraphChildGraphNodeGetGraph = [](CUgraphNode node, CUgraph* graph) {
    return *graph = reinterpret_cast<CUgraph>(number(node) - 1), CUDA_SUCCESS;
  };
  table.cuGraphGetEdges_v2 = [](CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData*, size_t* count) {
    *count = graph == kChain ? kKernels - 1 : 0;
    for (size_t i = 0; from && i < *count; ++i) {
      from[i] = reinterpret_cast<CUgraphNode>(number(graph) + i);
      to[i] = reinterpret_cast<CUgraphNode>(number(graph) + i + 1);
    }
    return CUDA_SUCCESS;
  };
  table.cuGraphKernelNodeGetParams_v2 = [](CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v2* params) {
    return params->func = reinterpret_cast<CUfunction>(0x100), CUDA_SUCCESS;
  };
  table.cuFuncGetParamInfo = [](CUfunction, size_t index, size_t* offset, size_t* bytes) {
    return *offset = 0, *bytes = kParameters, index == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };
  table.cuGraphMemAllocNodeGetParams = [](CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
    return params->bytesize = kAllocation, CUDA_SUCCESS;
  };
  table.cuGraphAddMemAllocNode = [](CUgraphNode* node, CUgraph, const CUgraphNode*, size_t,
                                    CUDA_MEM_ALLOC_NODE_PARAMS*) {
    return *node = reinterpret_cast<CUgraphNode>(1), CUDA_SUCCESS;
  };
  table.cuGraphInstantiateWithFlags = [](CUgraphExec* exec, CUgraph, unsigned long long) {
    return *exec = reinterpret_cast<CUgraphExec>(++gpu->instances), CUDA_SUCCESS;
  };
  table.cuGraphExecDestroy = [](CUgraphExec) { return CUDA_SUCCESS; };
  table.cuGraphDestroy = [](CUgraph) { return CUDA_SUCCESS; };
  table.cuGraphLaunch = [](CUgraphExec, CUstream) { return gpu->reserved = kAllocation, CUDA_SUCCESS; };
  table.cuDeviceGetGraphMemAttribute = [](CUdevice, CUgraphMem_attribute, void* value) {
    return *static_cast<cuuint64_t*>(value) = gpu->reserved, CUDA_SUCCESS;
  };
}
const auto kContext = reinterpret_cast<CUcontext>(0x77);

DriverTable fake_table() {
  DriverTable table;
  table.cuCtxGetCurrent = [](CUcontext* context) { return *context = kContext, CUDA_SUCCESS; };
  table.cuCtxGetDevice = [](CUdevice* device) { return *device = 0, CUDA_SUCCESS; };
  table.cuDevicePrimaryCtxRetain = [](CUcontext* context, CUdevice) {
    return *context = kContext, gpu->active = true, CUDA_SUCCESS;
  };
  table.cuDevicePrimaryCtxReset_v2 = [](CUdevice) { return gpu->active = false, CUDA_SUCCESS; };
  table.cuDevicePrimaryCtxGetState = [](CUdevice, unsigned* flags, int* active) {
    return *flags = 0, *active = gpu->active, CUDA_SUCCESS;
  };
  table.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute, CUdevice) {
    return *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 132 : 2048, CUDA_SUCCESS;
  };
  table.cuCtxGetLimit = [](size_t* value, CUlimit) { return *value = gpu->stack, CUDA_SUCCESS; };
  table.cuCtxSetLimit = [](CUlimit, size_t value) { return gpu->stack = value, CUDA_SUCCESS; };
  table.cuMemAlloc_v2 = [](CUdeviceptr* address, size_t bytes) {
    return *address = gpu->next, gpu->next += (bytes + 511) / 512 * 512, CUDA_SUCCESS;
  };
  table.cuMemFree_v2 = [](CUdeviceptr) { return CUDA_SUCCESS; };
  table.cuFuncGetAttribute = [](int* value, CUfunction_attribute, CUfunction function) {
    return *value = gpu->frames[function], CUDA_SUCCESS;
  };
  table.cuLaunchKernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                            void**, void**) { return ++gpu->launches, CUDA_SUCCESS; };
  table.cuStreamCreate = [](CUstream* stream, unsigned) {
    return *stream = reinterpret_cast<CUstream>(++gpu->streams), CUDA_SUCCESS;
  };
  table.cuStreamDestroy_v2 = [](CUstream) { return CUDA_SUCCESS; };
  fake_graphs(table);
  return table;
}

struct Fixture {
  Fixture() {
    gpu = &fake;
    page->slots = 2;
    for (uint32_t column : {0u, kHostColumn}) page->column[column].allowance = page->column[column].limit = 8192 * kMiB;
    CUcontext context = nullptr;
    REQUIRE(cuda.cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  }
  ~Fixture() {
    CHECK(cuda.cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
    CHECK(used() == 0);
    CHECK(ledger.used(kHostColumn) == 0);
  }
  uint64_t used() const { return ledger.used(0); }
  CUresult launch(CUfunction function) {
    return cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  }

  FakeGpu fake;
  SharedPage<TenantPage> page = SharedPage<TenantPage>::create().value();
  SessionLedger ledger{*page, 1, nullptr};
  const DriverTable table = fake_table();
  LedgeredDriver driver{table, ledger, {.columns = {0}, .software = false}};
  const DriverTable& cuda = driver.table();
};

TEST_CASE_FIXTURE(Fixture,
                  "small allocations are charged the chunks that they lie in, and large ones multiples of 2 MiB") {
  std::vector<CUdeviceptr> small(5000);
  for (CUdeviceptr& one : small) REQUIRE(cuda.cuMemAlloc_v2(&one, 1000) == CUDA_SUCCESS);  // 2048 to a chunk
  CHECK(used() == 3 * kChunk);
  // All but one allocation of the second chunk are freed: the chunk stays.
  for (size_t i = 2049; i < 4096; ++i) CHECK(cuda.cuMemFree_v2(small[i]) == CUDA_SUCCESS);
  CHECK(used() == 3 * kChunk);
  CHECK(cuda.cuMemFree_v2(small[2048]) == CUDA_SUCCESS);
  CHECK(used() == 2 * kChunk);
  CUdeviceptr large = 0;
  CHECK(cuda.cuMemAlloc_v2(&large, kMiB + 1) == CUDA_SUCCESS);
  CHECK(used() == 3 * kChunk);
}

TEST_CASE_FIXTURE(
    Fixture, "at the limit a small allocation is served from a chunk that is there, and a new chunk is not opened") {
  CUdeviceptr one = 0;
  page->column[0].limit = kChunk;
  for (unsigned i = 0; i < 2048; ++i) REQUIRE(cuda.cuMemAlloc_v2(&one, 1024) == CUDA_SUCCESS);
  CHECK(used() == kChunk);
  CHECK(cuda.cuMemAlloc_v2(&one, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(used() == kChunk);
}

TEST_CASE_FIXTURE(Fixture, "a context that the session makes is charged on this machine, too") {
  CHECK(ledger.used(kHostColumn) == uint64_t{24} * kMiB);
}

TEST_CASE_FIXTURE(Fixture,
                  "a kernel's frames are charged for every thread that can be resident, once for all kernels") {
  auto none = reinterpret_cast<CUfunction>(0x100), deep = reinterpret_cast<CUfunction>(0x200),
       abyss = reinterpret_cast<CUfunction>(0x300);
  fake.frames = {{none, 0}, {deep, 16384}, {abyss, 131072}};
  CHECK(launch(none) == CUDA_SUCCESS);
  CHECK(used() == 0);
  CHECK(launch(deep) == CUDA_SUCCESS);
  CHECK(launch(deep) == CUDA_SUCCESS);
  CHECK(used() == 3960 * kMiB);  // as measured
  CHECK(launch(abyss) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(fake.launches == 3);
  CHECK(used() == 3960 * kMiB);
  page->column[0].allowance = page->column[0].limit = 40'000 * kMiB;
  CHECK(launch(abyss) == CUDA_SUCCESS);
  CHECK(used() == (3960 + 29568) * kMiB);
  CHECK(cuda.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024) == CUDA_SUCCESS);
  CHECK(used() == 0);
  CHECK(launch(deep) == CUDA_SUCCESS);
  CHECK(used() == 3960 * kMiB);
}

TEST_CASE_FIXTURE(Fixture, "a stream's memory stays charged to its context, and the next stream needs no more") {
  CUstream one = nullptr, two = nullptr, three = nullptr;
  REQUIRE(cuda.cuStreamCreate(&one, 0) == CUDA_SUCCESS);
  REQUIRE(cuda.cuStreamCreate(&two, 0) == CUDA_SUCCESS);
  uint64_t both = used();
  CHECK(both == 2 * (560u << 10));
  CHECK(cuda.cuStreamDestroy_v2(one) == CUDA_SUCCESS);
  CHECK(used() == both);
  REQUIRE(cuda.cuStreamCreate(&three, 0) == CUDA_SUCCESS);
  CHECK(used() == both);
}

TEST_CASE_FIXTURE(Fixture,
                  "an allocation node is charged before its graph is launched, however deep it lies in others") {
  const auto outermost = reinterpret_cast<CUgraph>(kDepth), innermost = reinterpret_cast<CUgraph>(1);
  CUDA_MEM_ALLOC_NODE_PARAMS params{.bytesize = kAllocation};
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  REQUIRE(cuda.cuGraphAddMemAllocNode(&node, innermost, nullptr, 0, &params) == CUDA_SUCCESS);
  REQUIRE(cuda.cuGraphInstantiateWithFlags(&exec, outermost, 0) == CUDA_SUCCESS);
  const uint64_t instance = used();
  page->column[0].limit = instance + kAllocation - 1;
  CHECK(cuda.cuGraphLaunch(exec, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(fake.reserved == 0);
  page->column[0].limit = instance + kAllocation;
  CHECK(cuda.cuGraphLaunch(exec, nullptr) == CUDA_SUCCESS);
  CHECK(used() == instance + kAllocation);
  fake.reserved = 0;
  CHECK(cuda.cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CHECK(used() == instance);
  CHECK(cuda.cuGraphDestroy(innermost) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "an instance of a graph is charged on the device, and what it took stays for the next one") {
  CUgraphExec one = nullptr, two = nullptr, three = nullptr;
  REQUIRE(cuda.cuGraphInstantiateWithFlags(&one, kChain, 0) == CUDA_SUCCESS);
  const uint64_t first = used();
  // Measured: 2,642 bytes for each kernel of a chain, and 110 KiB.
  CHECK(first >= kKernels * 2642 + 113'246);
  CHECK(first <= kKernels * 3000 + 130'000);
  REQUIRE(cuda.cuGraphInstantiateWithFlags(&two, kChain, 0) == CUDA_SUCCESS);
  CHECK(used() == 2 * first);
  CHECK(cuda.cuGraphExecDestroy(one) == CUDA_SUCCESS);
  CHECK(used() == 2 * first);
  REQUIRE(cuda.cuGraphInstantiateWithFlags(&three, kChain, 0) == CUDA_SUCCESS);
  CHECK(used() == 2 * first);
  CHECK(ledger.used(kHostColumn) >= 2 * kKernels * 5800);
  page->column[0].limit = 3 * first - 1;
  CHECK(cuda.cuGraphInstantiateWithFlags(&one, kChain, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(used() == 2 * first);
  for (CUgraphExec exec : {two, three}) CHECK(cuda.cuGraphExecDestroy(exec) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "kernels of a graph that need not wait for each other are charged a queue each") {
  CUgraphExec exec = nullptr;
  REQUIRE(cuda.cuGraphInstantiateWithFlags(&exec, kSideBySide, 0) == CUDA_SUCCESS);
  CHECK(used() >= kKernels * 117'314);  // as measured
  CHECK(ledger.used(kHostColumn) >= kKernels * 19'677);
  CHECK(cuda.cuGraphExecDestroy(exec) == CUDA_SUCCESS);
}

}  // namespace
}  // namespace gpuwire::server
