// All device memory is charged (docs/scheduling.md): random steps use every way to take it, and after each step no
// device has more memory in use, by the driver's own values, than the ledger has charged.
//
// GPUWIRE_TEST_STEPS: the number of steps; by default 4,000, and a million in the long form. GPUWIRE_TEST_SEED: the
// seed.
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "test/server/ledger/worker/software_ledger.hpp"
#include "test/support/becomes.hpp"

namespace gpuwire::server {
namespace {

using test::kMiB;
using test::software_driver;

constexpr uint64_t kLimit = 12 * kMiB;  // so that steps are refused, too
constexpr uint64_t kMost = 3 * kMiB;    // bound of one object
constexpr int kDevices = 2;
constexpr unsigned kObjectsMax = 40;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

class Steps {
 public:
  explicit Steps(uint64_t seed) : random_(seed), tenant_(kLimit, 256 * kLimit), cuda_(tenant_.cuda) {
    for (int device = 0; device < kDevices; ++device) {
      REQUIRE(cuda_.cuDevicePrimaryCtxRetain(&primary_[device], device) == CUDA_SUCCESS);
      contexts_.push_back({primary_[device], device});
      REQUIRE(software_driver().cuCtxSetCurrent(primary_[device]) == CUDA_SUCCESS);
      before_[device] = taken(device);
    }
    REQUIRE(software_driver().cuCtxGetLimit(&fresh_printf_, CU_LIMIT_PRINTF_FIFO_SIZE) == CUDA_SUCCESS);
  }
  ~Steps() {
    while (!objects_.empty()) drop(objects_.size() - 1);
    while (contexts_.size() > kDevices) destroy_context(contexts_.size() - 1);
    check();
    for (int device = 0; device < kDevices; ++device) {
      cuda_.cuCtxSetCurrent(primary_[device]);
      cuda_.cuCtxSynchronize();
      // Pools release their memory later.
      CHECK(test::becomes([&] { return taken(device) == before_[device] && charged(device) == 0; }));
    }
    for (int device = 0; device < kDevices; ++device) CHECK(cuda_.cuDevicePrimaryCtxReset_v2(device) == CUDA_SUCCESS);
    tenant_.check_that_nothing_is_left();
    tenant_.ledgered.rest();
  }

  void step() {
    if (objects_.size() >= kObjectsMax || (!objects_.empty() && below(3) == 0)) drop(below(objects_.size()));
    else make();
    check();
  }
  // The number of successes of each kind, which shows that each kind is really tested.
  const std::vector<uint64_t>& made() const { return made_; }
  uint64_t refused() const { return refused_; }

 private:
  struct Where {
    CUcontext context = nullptr;
    int device = 0;
  };
  struct Object {
    Where where;
    bool of_context = true;  // ends with its context
    size_t kind = 0;
    std::function<CUresult()> free;
  };
  using Maker = void (Steps::*)(Where);

  uint64_t below(uint64_t bound) { return random_() % bound; }
  uint64_t some_bytes() { return 1 + below(below(4) ? 5000 : kMost); }
  uint64_t taken(int device) {
    CUcontext current = nullptr;
    size_t free = 0, total = 0;
    const DriverTable& bare = software_driver();
    const bool told = !bare.cuCtxGetCurrent(&current) && !bare.cuCtxSetCurrent(primary_[device]) &&
                      !bare.cuMemGetInfo_v2(&free, &total) && !bare.cuCtxSetCurrent(current);
    if (!told) FAIL("the driver does not tell how much memory is free");
    return total - free;
  }
  uint64_t charged(int device) const { return tenant_.used(device); }
  void check() {
    for (int device = 0; device < kDevices; ++device) {
      CAPTURE(device);
      CAPTURE(kind_);
      CAPTURE(dropped_);
      // A pool reports a release of memory a moment before the device has it.
      REQUIRE(test::becomes([&] { return charged(device) >= taken(device) - before_[device]; }));
      REQUIRE(charged(device) <= kLimit);
    }
  }
  // Returns whether the call succeeded; the only other allowed answer is out of memory.
  bool worked(CUresult result) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY) ++refused_;
    else CHECK(result == CUDA_SUCCESS);
    return result == CUDA_SUCCESS;
  }
  void keep(Where where, std::function<CUresult()> free, bool of_context = true) {
    objects_.push_back({where, of_context, kind_, std::move(free)});
    ++made_[kind_];
  }
  void drop(size_t index) {
    Object object = std::move(objects_[index]);
    objects_.erase(objects_.begin() + ptrdiff_t(index));
    cuda_.cuCtxSetCurrent(object.where.context);
    dropped_ = object.kind;
    CHECK(object.free() == CUDA_SUCCESS);
  }
  void make() {
    static constexpr Maker kMakers[] = {&Steps::plain,        &Steps::pitched,  &Steps::managed, &Steps::asynchronous,
                                        &Steps::pool,         &Steps::physical, &Steps::array,   &Steps::deep,
                                        &Steps::mipmapped,    &Steps::module,   &Steps::library, &Steps::graph,
                                        &Steps::nested,       &Steps::captured, &Steps::context, &Steps::green,
                                        &Steps::device_printf};
    made_.resize(std::size(kMakers));
    kind_ = below(std::size(kMakers));
    Where where = contexts_[below(contexts_.size())];
    REQUIRE(cuda_.cuCtxSetCurrent(where.context) == CUDA_SUCCESS);
    (this->*kMakers[kind_])(where);
  }

  void plain(Where where) {
    CUdeviceptr address = 0;
    if (worked(cuda_.cuMemAlloc_v2(&address, some_bytes())))
      keep(where, [this, address] { return cuda_.cuMemFree_v2(address); });
  }
  void pitched(Where where) {
    CUdeviceptr address = 0;
    size_t pitch = 0;
    if (worked(cuda_.cuMemAllocPitch_v2(&address, &pitch, 1 + below(3000), 1 + below(500), 4)))
      keep(where, [this, address] { return cuda_.cuMemFree_v2(address); });
  }
  void managed(Where where) {
    CUdeviceptr address = 0;
    if (worked(cuda_.cuMemAllocManaged(&address, some_bytes(), CU_MEM_ATTACH_GLOBAL)))
      keep(where, [this, address] { return cuda_.cuMemFree_v2(address); });
  }
  // Stream-ordered memory belongs to its pool, but the software device ends it with its context, so the test allocates
  // it in a context that stays.
  Where staying(Where where) {
    where.context = primary_[where.device];
    REQUIRE(cuda_.cuCtxSetCurrent(where.context) == CUDA_SUCCESS);
    return where;
  }
  void asynchronous(Where where) {
    CUdeviceptr address = 0;
    where = staying(where);
    if (worked(cuda_.cuMemAllocAsync(&address, some_bytes(), nullptr)))
      keep(
          where, [this, address] { return cuda_.cuMemFreeAsync(address, nullptr); }, false);
  }
  void pool(Where where) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {int(below(kDevices))}};
    CUmemoryPool pool = nullptr;
    CUdeviceptr address = 0;
    where = staying(where);
    if (!worked(cuda_.cuMemPoolCreate(&pool, &properties))) return;
    const bool filled = worked(cuda_.cuMemAllocFromPoolAsync(&address, some_bytes(), pool, nullptr));
    const bool first = below(2);
    keep(
        where,
        [=, this] {
          if (first && cuda_.cuMemPoolDestroy(pool)) return CUDA_ERROR_UNKNOWN;
          if (filled && cuda_.cuMemFreeAsync(address, nullptr)) return CUDA_ERROR_UNKNOWN;
          return first ? CUDA_SUCCESS : cuda_.cuMemPoolDestroy(pool);
        },
        false);
  }
  void physical(Where where) {
    const uint64_t bytes = (1 + below(2)) * 2 * kMiB;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {int(below(kDevices))}};
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr range = 0;
    if (!worked(cuda_.cuMemCreate(&handle, bytes, &properties, 0))) return;
    REQUIRE(cuda_.cuMemAddressReserve(&range, bytes, 0, 0, 0) == CUDA_SUCCESS);
    REQUIRE(cuda_.cuMemMap(range, bytes, 0, handle, 0) == CUDA_SUCCESS);
    const bool early = below(2);
    if (early) REQUIRE(cuda_.cuMemRelease(handle) == CUDA_SUCCESS);
    keep(
        where,
        [=, this] {
          if (cuda_.cuMemUnmap(range, bytes) || (!early && cuda_.cuMemRelease(handle))) return CUDA_ERROR_UNKNOWN;
          return cuda_.cuMemAddressFree(range, bytes);
        },
        false);
  }
  CUDA_ARRAY3D_DESCRIPTOR description(uint64_t most) {
    static constexpr CUarray_format kFormats[] = {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_HALF, CU_AD_FORMAT_FLOAT};
    return {.Width = 1 + below(most),
            .Height = 1 + below(most),
            .Format = kFormats[below(std::size(kFormats))],
            .NumChannels = 1u << below(3)};
  }
  void array(Where where) {
    const CUDA_ARRAY3D_DESCRIPTOR some = description(300);
    const CUDA_ARRAY_DESCRIPTOR flat{some.Width, below(3) ? some.Height : 0, some.Format, some.NumChannels};
    CUarray array = nullptr;
    if (worked(cuda_.cuArrayCreate_v2(&array, &flat)))
      keep(where, [this, array] { return cuda_.cuArrayDestroy(array); });
  }
  void deep(Where where) {
    CUDA_ARRAY3D_DESCRIPTOR some = description(50);
    some.Depth = 1 + below(20);
    if (below(2)) some.Flags = CUDA_ARRAY3D_LAYERED;
    CUarray array = nullptr;
    if (worked(cuda_.cuArray3DCreate_v2(&array, &some)))
      keep(where, [this, array] { return cuda_.cuArrayDestroy(array); });
  }
  void mipmapped(Where where) {
    const CUDA_ARRAY3D_DESCRIPTOR some = description(200);
    CUmipmappedArray array = nullptr;
    if (worked(cuda_.cuMipmappedArrayCreate(&array, &some, 1 + unsigned(below(9)))))
      keep(where, [this, array] { return cuda_.cuMipmappedArrayDestroy(array); });
  }

  // Returns a program with variables, in one of several spellings.
  std::string program() {
    const std::string bytes = std::to_string(some_bytes());
    const std::string declarations[] = {
        ".visible .global .align 8 .b8 big[" + bytes + "];",
        ".visible .global /* ; */ .align 8 .b8 big[" + bytes + "];",
        ".visible .global\t.b8\n// ]\nbig [ " + bytes + " ] ;",
        ".visible .global .align 256 .b8 big[" + bytes + "], more[" + std::to_string(below(3000) + 1) + "];",
        ".visible .global .b32 big[3][" + std::to_string(below(4000) + 1) + "];",
        ".visible .global .attribute(.managed) .align 8 .b8 big[" + bytes + "]; .global .b8 more[" +
            std::to_string(below(9000) + 1) + "];",
        ".visible .const .align 4 .b8 big[" + std::to_string(below(30000) + 1) + "];",
    };
    return ".version 8.0\n.target sm_80\n.address_size 64\n" + declarations[below(std::size(declarations))] +
           "\n.visible .entry none() { ret; }\n//" + std::to_string(below(1000)) + "\n";
  }
  void module(Where where) {
    CUmodule module = nullptr;
    const std::string text = program();
    const bool with_options = below(2);
    if (worked(with_options ? cuda_.cuModuleLoadDataEx(&module, text.c_str(), 0, nullptr, nullptr)
                            : cuda_.cuModuleLoadData(&module, text.c_str())))
      keep(where, [this, module] { return cuda_.cuModuleUnload(module); });
  }
  // Uses a library in contexts where it was not loaded, by each call that loads it there.
  void library(Where where) {
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    const std::string text = program();
    if (below(3) == 0) REQUIRE(cuda_.cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
    if (!worked(cuda_.cuLibraryLoadData(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0))) return;
    REQUIRE(cuda_.cuLibraryGetKernel(&kernel, library, "none") == CUDA_SUCCESS);
    keep(
        where, [this, library] { return cuda_.cuLibraryUnload(library); }, false);
    for (uint64_t uses = below(4); uses != 0; --uses) {
      REQUIRE(cuda_.cuCtxSetCurrent(contexts_[below(contexts_.size())].context) == CUDA_SUCCESS);
      use(library, kernel);
      check();
    }
  }
  void use(CUlibrary library, CUkernel kernel) {
    const auto in_place = reinterpret_cast<CUfunction>(kernel);
    CUdeviceptr address = 0;
    CUfunction function = nullptr;
    CUmodule module = nullptr;
    size_t bytes = 0;
    int value = 0;
    switch (below(8)) {
      case 0: worked(cuda_.cuLibraryGetGlobal(&address, &bytes, library, "big")); break;
      case 1: worked(cuda_.cuLibraryGetModule(&module, library)); break;
      case 2: worked(cuda_.cuKernelGetFunction(&function, kernel)); break;
      case 3: worked(cuda_.cuLaunchKernel(in_place, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr)); break;
      case 4: worked(cuda_.cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, in_place)); break;
      case 5: worked(cuda_.cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, in_place, 32, 0)); break;
      case 6: {
        const CUresult result = cuda_.cuLibraryGetManaged(&address, &bytes, library, "big");
        if (result != CUDA_ERROR_NOT_FOUND) worked(result);
        break;
      }
      case 7: {
        CUgraph graph = nullptr;
        CUgraphNode node = nullptr;
        CUDA_KERNEL_NODE_PARAMS params{};
        params.kern = kernel;
        params.ctx = contexts_[below(contexts_.size())].context;
        params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ =
            1;
        REQUIRE(cuda_.cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
        worked(cuda_.cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &params));
        CHECK(cuda_.cuGraphDestroy(graph) == CUDA_SUCCESS);
        break;
      }
    }
    CHECK(cuda_.cuCtxSynchronize() == CUDA_SUCCESS);
  }

  // Allocates and frees in the graph.
  bool add_allocation(CUgraph graph) {
    CUgraphNode node = nullptr, freed = nullptr;
    CUgraphNodeParams general{};
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {int(below(kDevices))}};
    params.bytesize = some_bytes();
    general.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    general.alloc.poolProps = params.poolProps;
    general.alloc.bytesize = params.bytesize;
    const bool one = below(2);
    if (!worked(one ? cuda_.cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &params)
                    : cuda_.cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &general)))
      return false;
    return worked(cuda_.cuGraphAddMemFreeNode(&freed, graph, &node, 1, one ? params.dptr : general.alloc.dptr));
  }
  void graph(Where where) {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    REQUIRE(cuda_.cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    for (uint64_t nodes = 1 + below(3); nodes != 0 && add_allocation(graph); --nodes) {}
    if (worked(cuda_.cuGraphInstantiateWithFlags(&exec, graph, 0))) {
      worked(cuda_.cuGraphLaunch(exec, nullptr));
      CHECK(cuda_.cuCtxSynchronize() == CUDA_SUCCESS);
    }
    keep(
        where,
        [=, this] {
          if (exec && cuda_.cuGraphExecDestroy(exec)) return CUDA_ERROR_UNKNOWN;
          return cuda_.cuGraphDestroy(graph);
        },
        false);
  }
  // Child graphs take host memory.
  void nested(Where where) {
    CUgraph inner = nullptr, outer = nullptr;
    CUgraphNode node = nullptr;
    REQUIRE(cuda_.cuGraphCreate(&inner, 0) == CUDA_SUCCESS);
    worked(cuda_.cuGraphAddEmptyNode(&node, inner, nullptr, 0));
    for (uint64_t depth = below(30); depth != 0; --depth) {
      REQUIRE(cuda_.cuGraphCreate(&outer, 0) == CUDA_SUCCESS);
      worked(cuda_.cuGraphAddChildGraphNode(&node, outer, nullptr, 0, inner));
      CHECK(cuda_.cuGraphDestroy(inner) == CUDA_SUCCESS);
      inner = outer;
    }
    CUgraph clone = nullptr;
    if (worked(cuda_.cuGraphClone(&clone, inner))) CHECK(cuda_.cuGraphDestroy(clone) == CUDA_SUCCESS);
    keep(
        where, [this, inner] { return cuda_.cuGraphDestroy(inner); }, false);
  }
  void captured(Where where) {
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    CUdeviceptr address = 0;
    REQUIRE(cuda_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuda_.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    if (worked(cuda_.cuMemAllocAsync(&address, some_bytes(), stream))) worked(cuda_.cuMemFreeAsync(address, stream));
    const bool ended = worked(cuda_.cuStreamEndCapture(stream, &graph));
    CHECK(cuda_.cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
    if (ended)
      keep(
          where, [this, graph] { return cuda_.cuGraphDestroy(graph); }, false);
  }

  void context(Where where) {
    CUcontext context = nullptr;
    if (contexts_.size() > 6) return destroy_context(kDevices + below(contexts_.size() - kDevices));
    if (!worked(cuda_.cuCtxCreate_v2(&context, 0, where.device))) return;
    contexts_.push_back({context, where.device});
    ++made_[kind_];
  }
  void destroy_context(size_t index) {
    const CUcontext context = contexts_[index].context;
    CHECK(cuda_.cuCtxDestroy_v2(context) == CUDA_SUCCESS);
    contexts_.erase(contexts_.begin() + ptrdiff_t(index));
    std::erase_if(objects_, [&](const Object& object) { return object.of_context && object.where.context == context; });
    for (Object& object : objects_) {
      if (object.where.context == context) object.where.context = primary_[object.where.device];
    }
  }
  void green(Where where) {
    CUgreenCtx green = nullptr;
    CUcontext inside = nullptr;
    CUdeviceptr address = 0;
    if (!worked(cuda_.cuGreenCtxCreate(&green, nullptr, where.device, CU_GREEN_CTX_DEFAULT_STREAM))) return;
    REQUIRE(cuda_.cuCtxFromGreenCtx(&inside, green) == CUDA_SUCCESS);
    REQUIRE(cuda_.cuCtxSetCurrent(inside) == CUDA_SUCCESS);
    const bool filled = worked(cuda_.cuMemAlloc_v2(&address, some_bytes()));
    REQUIRE(cuda_.cuCtxSetCurrent(primary_[where.device]) == CUDA_SUCCESS);
    CHECK(cuda_.cuGreenCtxDestroy(green) == CUDA_SUCCESS);
    if (filled) keep({primary_[where.device], where.device}, [this, address] { return cuda_.cuMemFree_v2(address); });
  }
  void device_printf(Where where) {
    if (worked(cuda_.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, fresh_printf_ + some_bytes())))
      keep(where, [this] { return cuda_.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, fresh_printf_); });
  }

  std::mt19937_64 random_;
  test::SoftwareLedger tenant_;
  const DriverTable& cuda_;
  CUcontext primary_[kDevices]{};
  uint64_t before_[kDevices]{};
  size_t fresh_printf_ = 0;      // of every fresh context
  std::vector<Where> contexts_;  // the primary ones first
  std::vector<Object> objects_;
  size_t kind_ = 0, dropped_ = 0;  // of the last objects made and freed
  std::vector<uint64_t> made_;
  uint64_t refused_ = 0;
};

TEST_CASE("everything that takes memory of a device is charged, on each device, after each step") {
  const uint64_t seed = from_environment("GPUWIRE_TEST_SEED", 20260),
                 count = from_environment("GPUWIRE_TEST_STEPS", std::getenv("GPUWIRE_TEST_LONG") ? 1'000'000 : 4000);
  MESSAGE("seed " << seed << ", " << count << " steps");
  CAPTURE(seed);
  Steps steps(seed);
  for (uint64_t step = 0; step < count; ++step) {
    CAPTURE(step);
    steps.step();
  }
  for (size_t kind = 0; kind < steps.made().size(); ++kind) {
    CAPTURE(kind);
    CHECK(steps.made()[kind] > 0);
  }
  CHECK(steps.refused() > 0);
}

}  // namespace
}  // namespace gpuwire::server
