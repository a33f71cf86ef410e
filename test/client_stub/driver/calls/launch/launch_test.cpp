#include <cstring>
#include <string>
#include <vector>

#include "client/forward.hpp"
#include "client_stub/driver/state/module/module_state.hpp"
#include "schema/api_occupancy.capnp.h"
#include "test/client_stub/driver/state/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

using test::DeviceProcess;
using test::ordinal;
using wire::SessionOrdinal;

// A kernel that takes a pointer and an int, at most 512 threads, 4 KiB of dynamic shared memory.
struct KernelProcess : DeviceProcess {
  explicit KernelProcess(int devices = 1) : DeviceProcess(devices) {
    session->answer(ordinal(SessionOrdinal::module_offer),
                    [](capnp::MessageBuilder& reply) { reply.initRoot<schema::ModuleOfferReply>().setHave(true); });
    session->answer(ordinal(SessionOrdinal::module_load),
                    [](capnp::MessageBuilder& reply) { reply.initRoot<schema::ModuleLoadReply>(); });
    session->answer(ordinal(SessionOrdinal::module_function), [](capnp::MessageBuilder& reply) {
      auto facts = reply.initRoot<schema::FunctionFacts>();
      auto offsets = facts.initParameterOffsets(2);
      offsets.set(1, 8);
      auto sizes = facts.initParameterSizes(2);
      sizes.set(0, 8);
      sizes.set(1, 4);
      auto attributes = facts.initAttributes(CU_FUNC_ATTRIBUTE_MAX);
      facts.initAttributeErrors(CU_FUNC_ATTRIBUTE_MAX);
      attributes.set(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 512);
      attributes.set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 4096);
    });
    REQUIRE(custom::cuLibraryLoadData(&library, ".version 7.0\n", nullptr, nullptr, 0, nullptr, nullptr, 0) ==
            CUDA_SUCCESS);
    REQUIRE(custom::cuLibraryGetKernel(&kernel, library, "k") == CUDA_SUCCESS);
    function = reinterpret_cast<CUfunction>(kernel);
  }

  CUresult launch(unsigned grid, unsigned block, unsigned shared = 0, CUstream stream = nullptr) {
    return custom::cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, parameters, nullptr, false);
  }

  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  uint64_t pointer = 0x7000'0000'1234;
  int count = 42;
  void* parameters[2] = {&pointer, &count};
};

}  // namespace

TEST_CASE("Pinned memory that a parameter points to is made known to the server, with its content, before the launch") {
  KernelProcess process;
  void* memory = nullptr;
  REQUIRE(custom::cuMemAllocHost_v2(&memory, 1u << 20) == CUDA_SUCCESS);
  static_cast<char*>(memory)[77] = 7;
  REQUIRE(process.launch(1, 32) == CUDA_SUCCESS);
  CHECK(process.session->count(ordinal(SessionOrdinal::region_create)) == 0);
  process.pointer = reinterpret_cast<uint64_t>(memory) + 5000;
  SUBCASE("in a parameter of its own") { REQUIRE(process.launch(1, 32) == CUDA_SUCCESS); }
  SUBCASE("in a buffer") {
    std::byte buffer[12];
    size_t bytes = sizeof buffer;
    std::memcpy(buffer, &process.pointer, sizeof process.pointer);
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    REQUIRE(custom::cuLaunchKernel(process.function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra, false) ==
            CUDA_SUCCESS);
  }
  auto frames = process.session->frames();
  REQUIRE(frames.size() >= 3);
  CHECK(frames[frames.size() - 3].ordinal == ordinal(SessionOrdinal::region_create));
  CHECK(frames[frames.size() - 2].ordinal == ordinal(SessionOrdinal::region_write));
  CHECK(frames[frames.size() - 1].ordinal == ordinal(SessionOrdinal::launch));
  // From then on the block is compared, and nothing is sent while it does not change.
  size_t before = process.session->total();
  REQUIRE(process.launch(1, 32) == CUDA_SUCCESS);
  CHECK(process.session->total() == before + 1);
  CHECK(custom::cuMemFreeHost(memory) == CUDA_SUCCESS);
}

TEST_CASE("A launch is one posted frame with everything in it") {
  KernelProcess process;
  size_t before = process.session->total();
  REQUIRE(custom::cuLaunchKernel(process.function, 2, 3, 4, 5, 6, 7, 100, nullptr, process.parameters, nullptr,
                                 false) == CUDA_SUCCESS);
  REQUIRE(process.session->total() == before + 1);
  auto frame = process.session->newest();
  CHECK(frame.kind == wire::FrameKind::posted);
  CHECK(frame.ordinal == ordinal(SessionOrdinal::launch));
  CHECK(frame.context == uint32_t(t_context->handle));
  frame.read<schema::Launch>([&](auto launch) {
    CHECK(launch.getFunction() == reinterpret_cast<uint64_t>(process.kernel));
    CHECK(launch.getStream() == 0);
    CHECK(launch.getGridX() == 2);
    CHECK(launch.getGridY() == 3);
    CHECK(launch.getGridZ() == 4);
    CHECK(launch.getBlockX() == 5);
    CHECK(launch.getBlockY() == 6);
    CHECK(launch.getBlockZ() == 7);
    CHECK(launch.getSharedBytes() == 100);
    CHECK_FALSE(launch.getCooperative());
    auto data = launch.getParameters();
    REQUIRE(data.size() == 12);
    CHECK(std::memcmp(data.begin(), &process.pointer, 8) == 0);
    CHECK(std::memcmp(data.begin() + 8, &process.count, 4) == 0);
  });
}

TEST_CASE("What is wrong with a launch is told by it, and nothing is sent") {
  KernelProcess process;
  size_t before = process.session->total();
  CHECK(process.launch(0, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.launch(1, 2000) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.launch(1, 513) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.launch(1, 32, 4097) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.launch(1, 32, 0, reinterpret_cast<CUstream>(uintptr_t(0x5555))) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(custom::cuLaunchKernel(process.function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr, false) ==
        CUDA_ERROR_INVALID_VALUE);
  void* missing[2] = {&process.pointer, nullptr};
  CHECK(custom::cuLaunchKernel(process.function, 1, 1, 1, 1, 1, 1, 0, nullptr, missing, nullptr, false) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, process.parameters, nullptr, false) ==
        CUDA_ERROR_INVALID_HANDLE);
  int local = 0;
  CHECK(custom::cuLaunchKernel(reinterpret_cast<CUfunction>(&local), 1, 1, 1, 1, 1, 1, 0, nullptr, process.parameters,
                               nullptr, false) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(process.session->total() == before);
  CHECK(process.launch(1, 512, 4096) == CUDA_SUCCESS);
}

TEST_CASE("A kernel can be launched in every context, a function only in its own") {
  KernelProcess process(2);
  CUmodule module = nullptr;
  CUfunction own = nullptr;
  REQUIRE(custom::cuModuleLoadData(&module, ".version 7.0\n") == CUDA_SUCCESS);
  REQUIRE(custom::cuModuleGetFunction(&own, module, "k") == CUDA_SUCCESS);
  uint32_t first_context = uint32_t(t_context->handle);
  CHECK(custom::cuLaunchKernel(own, 1, 1, 1, 1, 1, 1, 0, nullptr, process.parameters, nullptr, false) == CUDA_SUCCESS);
  process.make_current(1);
  CHECK(custom::cuLaunchKernel(own, 1, 1, 1, 1, 1, 1, 0, nullptr, process.parameters, nullptr, false) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(process.launch(1, 1) == CUDA_SUCCESS);
  CHECK(process.session->newest().context == uint32_t(t_context->handle));
  CHECK(process.session->newest().context != first_context);
}

TEST_CASE("A launch of an unloaded kernel is an invalid handle") {
  KernelProcess process;
  REQUIRE(custom::cuLibraryUnload(process.library) == CUDA_SUCCESS);
  CHECK(process.launch(1, 1) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("Launch attributes travel as they are, and the events in them must exist") {
  KernelProcess process;
  CUlaunchAttribute attributes[2]{};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  attributes[0].value.priority = -1;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_IGNORE;
  CUlaunchConfig config{1, 1, 1, 32, 1, 1, 0, nullptr, attributes, 2};
  REQUIRE(custom::cuLaunchKernelEx(&config, process.function, process.parameters, nullptr, false) == CUDA_SUCCESS);
  process.session->newest().read<schema::Launch>([&](auto launch) {
    REQUIRE(launch.getAttributes().size() == sizeof attributes);
    CHECK(std::memcmp(launch.getAttributes().begin(), attributes, sizeof attributes) == 0);
  });
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
  attributes[1].value.launchCompletionEvent.event = reinterpret_cast<CUevent>(uintptr_t(0x99));
  CHECK(custom::cuLaunchKernelEx(&config, process.function, process.parameters, nullptr, false) ==
        CUDA_ERROR_INVALID_HANDLE);
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
  CHECK(custom::cuLaunchKernelEx(&config, process.function, process.parameters, nullptr, false) ==
        CUDA_ERROR_NOT_SUPPORTED);
  config.attrs = nullptr;
  CHECK(custom::cuLaunchKernelEx(&config, process.function, process.parameters, nullptr, false) ==
        CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("An event in the attributes of a launch that is captured takes who waits for it into the capture") {
  KernelProcess process;
  CUstream origin = nullptr, other = nullptr;
  REQUIRE(custom::cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(custom::cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUevent event = nullptr;
  REQUIRE(custom::cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
  attribute.value.launchCompletionEvent.event = event;
  CUlaunchConfig config{1, 1, 1, 32, 1, 1, 0, origin, &attribute, 1};
  REQUIRE(process.launch(1, 32) == CUDA_SUCCESS);  // all queries about the kernel are answered
  REQUIRE(custom::cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_RELAXED, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuLaunchKernelEx(&config, process.function, process.parameters, nullptr, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamWaitEvent(other, event, 0, false) == CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CHECK(custom::cuStreamIsCapturing(other, &status, false) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(custom::cuEventQuery(event) == CUDA_ERROR_CAPTURED_EVENT);
}

TEST_CASE("A cooperative launch must fit on the device at once; how much fits is asked once") {
  KernelProcess process;
  process.session->answer(test::kOccupancyWithFlags, [](capnp::MessageBuilder& reply) {
    reply.initRoot<schema::CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlagsResults>().setNumBlocks(3);
  });
  auto launch = [&](unsigned blocks) {
    return custom::cuLaunchCooperativeKernel(process.function, blocks, 1, 1, 64, 1, 1, 0, nullptr, process.parameters,
                                             false);
  };
  CHECK(launch(12) == CUDA_SUCCESS);
  process.session->newest().read<schema::Launch>([](auto message) { CHECK(message.getCooperative()); });
  CHECK(launch(13) == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  CHECK(process.session->count(test::kOccupancyWithFlags) == 1);
  int blocks = 0;
  CHECK(custom::cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, process.function, 64, 0) == CUDA_SUCCESS);
  CHECK(blocks == 3);
  CHECK(process.session->count(test::kOccupancyWithFlags) == 1);
  CHECK(custom::cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, process.function, 128, 0) == CUDA_SUCCESS);
  CHECK(process.session->count(test::kOccupancyWithFlags) == 2);
}

TEST_CASE("The best block size is the one with the most threads on a multiprocessor") {
  KernelProcess process;
  // Blocks of up to 192 threads: five of them fit; larger ones: two. 192 * 5 = 960, 512 * 2 = 1024.
  process.session->serve(
      test::kOccupancyWithFlags, [](const test::SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
        auto results = reply.initRoot<schema::CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlagsResults>();
        frame.read<schema::CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlagsParams>(
            [&](auto asked) { results.setNumBlocks(asked.getBlockSize() <= 192 ? 5 : 2); });
      });
  int grid = 0, block = 0;
  CHECK(custom::cuOccupancyMaxPotentialBlockSize(&grid, &block, process.function, nullptr, 0, 0) == CUDA_SUCCESS);
  CHECK(block == 512);
  CHECK(grid == 8);
  CHECK(custom::cuOccupancyMaxPotentialBlockSize(&grid, &block, process.function, nullptr, 0, 256) == CUDA_SUCCESS);
  CHECK(block == 192);
  CHECK(grid == 20);
}

TEST_CASE(
    "What is set of a kernel or of a function made of it is asked about anew of both, and what is the same of none") {
  KernelProcess process;
  CUfunction made = nullptr;
  REQUIRE(custom::cuKernelGetFunction(&made, process.kernel) == CUDA_SUCCESS);
  int answer = 3;
  process.session->answer(test::kOccupancyWithFlags, [&](capnp::MessageBuilder& reply) {
    reply.initRoot<schema::CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlagsResults>().setNumBlocks(answer);
  });
  auto blocks = [](CUfunction function) {
    int out = 0;
    CHECK(custom::cuOccupancyMaxActiveBlocksPerMultiprocessor(&out, function, 64, 0) == CUDA_SUCCESS);
    return out;
  };
  auto both_are = [&](int expected) { return blocks(process.function) == expected && blocks(made) == expected; };
  const auto attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  CHECK(both_are(3));
  answer = 2;
  CHECK(both_are(3));
  CHECK(process.session->count(test::kOccupancyWithFlags) == 2);
  SUBCASE("the kernel") {
    REQUIRE(custom::cuKernelSetAttribute(attribute, 8192, process.kernel, 0) == CUDA_SUCCESS);
    CHECK(both_are(2));
    answer = 1;
    REQUIRE(custom::cuKernelSetAttribute(attribute, 8192, process.kernel, 0) == CUDA_SUCCESS);
  }
  SUBCASE("the function") {
    REQUIRE(custom::cuFuncSetAttribute(made, attribute, 8192) == CUDA_SUCCESS);
    CHECK(both_are(2));
    answer = 1;
    REQUIRE(custom::cuFuncSetAttribute(made, attribute, 8192) == CUDA_SUCCESS);
  }
  SUBCASE("the kernel's cache") {
    REQUIRE(custom::cuKernelSetCacheConfig(process.kernel, CU_FUNC_CACHE_PREFER_SHARED, 0) == CUDA_SUCCESS);
  }
  SUBCASE("the function's cache") {
    REQUIRE(custom::cuFuncSetCacheConfig(made, CU_FUNC_CACHE_PREFER_SHARED) == CUDA_SUCCESS);
  }
  CHECK(both_are(2));
  CHECK(process.session->count(test::kOccupancyWithFlags) == 4);
}

TEST_CASE("A kernel that is a function of its library's module, too, is asked about anew when that is set") {
  KernelProcess process;
  CUmodule module = nullptr;
  CUfunction made = nullptr, of_module = nullptr;
  REQUIRE(custom::cuKernelGetFunction(&made, process.kernel) == CUDA_SUCCESS);
  REQUIRE(custom::cuLibraryGetModule(&module, process.library) == CUDA_SUCCESS);
  REQUIRE(custom::cuModuleGetFunction(&of_module, module, "k") == CUDA_SUCCESS);
  process.session->answer(test::kOccupancyWithFlags, [](capnp::MessageBuilder& reply) {
    reply.initRoot<schema::CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlagsResults>().setNumBlocks(3);
  });
  auto ask = [&](CUfunction function) {
    int blocks = 0;
    CHECK(custom::cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 64, 0) == CUDA_SUCCESS);
    return process.session->count(test::kOccupancyWithFlags);
  };
  CHECK(ask(process.function) == 1);
  CHECK(ask(made) == 2);
  // Answers about the module's function are not cached: the kernel's attributes can change without a call on the
  // function.
  CHECK(ask(of_module) == 3);
  CHECK(ask(of_module) == 4);
  const auto attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  REQUIRE(custom::cuFuncSetAttribute(of_module, attribute, 8192) == CUDA_SUCCESS);
  CHECK(ask(process.function) == 5);
  CHECK(ask(made) == 6);
  const size_t before = process.session->total();
  int value = 0;
  for (CUfunction function : {of_module, made})
    CHECK(custom::cuFuncGetAttribute(&value, attribute, function) == CUDA_SUCCESS);
  CHECK(process.session->total() == before + 2);
}

TEST_CASE("What was asked before something was set is not kept behind it") {
  OccupancyAnswers answers;
  OccupancyAnswer answer;
  OccupancyState state;
  REQUIRE_FALSE(answers.find("question", 0, answer, state));
  answers.set({CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 0, true, 1 << 10});
  answers.keep("question", {CUDA_SUCCESS, 7}, state);
  REQUIRE_FALSE(answers.find("question", 0, answer, state));
  answers.keep("question", {CUDA_SUCCESS, 8}, state);
  REQUIRE(answers.find("question", 0, answer, state));
  CHECK(answer.value == 8);
  for (size_t i = 0; i < kOccupancyAnswersMax; ++i) answers.keep(std::to_string(i), {CUDA_SUCCESS, i}, state);
  CHECK_FALSE(answers.find("question", 0, answer, state));  // the cache had no room for all
}

TEST_CASE("How many clusters fit is asked once for each configuration and each setting") {
  KernelProcess process;
  constexpr auto kActive = forward_ordinal::cuOccupancyMaxActiveClusters,
                 kPotential = forward_ordinal::cuOccupancyMaxPotentialClusterSize;
  process.session->answer(kActive, [](capnp::MessageBuilder& reply) {
    reply.initRoot<schema::CuOccupancyMaxActiveClustersResults>().setNumClusters(5);
  });
  process.session->answer(kPotential, [](capnp::MessageBuilder& reply) {
    reply.initRoot<schema::CuOccupancyMaxPotentialClusterSizeResults>().setClusterSize(8);
  });
  CUlaunchAttribute cluster{};
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster.value.clusterDim = {2, 1, 1};
  CUlaunchConfig config{4, 1, 1, 32, 1, 1, 0, nullptr, &cluster, 1};
  auto active = [&] {
    int count = 0;
    CHECK(custom::cuOccupancyMaxActiveClusters(&count, process.function, &config) == CUDA_SUCCESS);
    CHECK(count == 5);
    return process.session->count(kActive);
  };
  CHECK(active() == 1);
  CHECK(active() == 1);
  int size = 0;
  for (int i = 0; i < 2; ++i)
    CHECK(custom::cuOccupancyMaxPotentialClusterSize(&size, process.function, &config) == CUDA_SUCCESS);
  CHECK(size == 8);
  CHECK(process.session->count(kPotential) == 1);
  cluster.value.clusterDim.x = 4;
  CHECK(active() == 2);
  config.sharedMemBytes = 1024;
  CHECK(active() == 3);
  config.numAttrs = 0;
  CHECK(active() == 4);
  REQUIRE(custom::cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, process.kernel, 0) ==
          CUDA_SUCCESS);
  CHECK(active() == 5);
  // Longer than a cached query.
  std::vector<CUlaunchAttribute> many(kOccupancyQuestionBytesMax / sizeof(CUlaunchAttribute) + 1);
  config.attrs = many.data();
  config.numAttrs = unsigned(many.size());
  CHECK(active() == 6);
  CHECK(active() == 7);
}

TEST_CASE("A function made from a kernel is one per context and knows its parameters") {
  KernelProcess process;
  CUfunction function = nullptr, again = nullptr;
  REQUIRE(custom::cuKernelGetFunction(&function, process.kernel) == CUDA_SUCCESS);
  REQUIRE(custom::cuKernelGetFunction(&again, process.kernel) == CUDA_SUCCESS);
  CHECK(function == again);
  CHECK(process.session->count(test::kKernelGetFunction) == 1);
  size_t offset = 0, size = 0;
  CHECK(custom::cuFuncGetParamInfo(function, 1, &offset, &size) == CUDA_SUCCESS);
  CHECK(offset == 8);
  CHECK(custom::cuLibraryUnload(process.library) == CUDA_SUCCESS);
  CHECK(custom::cuFuncGetParamInfo(function, 1, &offset, &size) == CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace gpuwire::client
