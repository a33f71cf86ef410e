// Occupancy queries of earlier programs: their stored profile, and their prefetch in one call.
#include "client_stub/driver/state/warm_start/profiled_occupancy_questions.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "client/forward.hpp"
#include "client_stub/driver/state/module/module_state.hpp"
#include "schema/api_occupancy.capnp.h"
#include "test/client_stub/driver/state/memory/fixture.hpp"
#include "test/client_stub/driver/state/warm_start/warm_start_user.hpp"

namespace gpuwire::client {
namespace {

using test::DeviceProcess;
using test::ordinal;
using wire::SessionOrdinal;

constexpr auto kBlocks = forward_ordinal::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
               kClusters = forward_ordinal::cuOccupancyMaxActiveClusters;
const auto kTry = ordinal(SessionOrdinal::function_try);

struct User : test::WarmStartUser {
  User() : WarmStartUser("occupancy") {}
};

// A program of the user's with a library of two kernels. The server's answer is the number of a block's threads, plus
// the bytes of the cluster configuration, plus a thousand for each tried value; a block of 13 threads is invalid, and
// for one of 17 the server has no memory.
struct Program : DeviceProcess {
  explicit Program(const char* prefetch = "on", CUresult to_try = CUDA_SUCCESS, CUresult to_take_back = CUDA_SUCCESS)
      : DeviceProcess(1, "0", prefetch), trying(to_try), taking_back(to_take_back) {
    session->answer(ordinal(SessionOrdinal::module_load),
                    [](capnp::MessageBuilder& reply) { reply.initRoot<schema::ModuleLoadReply>(); });
    session->answer(ordinal(SessionOrdinal::module_function), [](capnp::MessageBuilder& reply) {
      auto facts = reply.initRoot<schema::FunctionFacts>();
      facts.initParameterOffsets(0);
      facts.initParameterSizes(0);
    });
    session->serve(kBlocks, [](const test::SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
      auto results = reply.initRoot<schema::CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlagsResults>();
      frame.read<schema::CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlagsParams>([&](auto question) {
        const CUresult result = result_of(question.getBlockSize());
        if (result) results.setResult(result);
        else results.setNumBlocks(question.getBlockSize() + int(question.getDynamicSMemSize()));
      });
    });
    session->serve(kClusters, [this](const test::SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
      auto results = reply.initRoot<schema::CuOccupancyMaxActiveClustersResults>();
      frame.read<schema::CuOccupancyMaxActiveClustersParams>(
          [&](auto question) { results.setNumClusters(int(question.getConfig().size()) + 1000 * tried); });
    });
    session->serve(kTry, [this](const test::SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
      auto results = reply.initRoot<schema::Result>();
      frame.read<schema::FunctionTry>([&](auto params) {
        tried = 0;
        if (params.getAttributes().size() == 0) return results.setResult(taking_back);
        results.setResult(trying);
        if (trying == CUDA_SUCCESS) tried = params.getValues()[0];
      });
    });
    REQUIRE(custom::cuLibraryLoadData(&library, ".version 7.0\n.target sm_75\n", nullptr, nullptr, 0, nullptr, nullptr,
                                      0) == CUDA_SUCCESS);
    for (auto [kernel, name] : {std::pair{&a, "a"}, std::pair{&b, "b of c"}})
      REQUIRE(custom::cuLibraryGetKernel(reinterpret_cast<CUkernel*>(kernel), library, name) ==
              (kernel == &a ? taking_back : CUDA_SUCCESS));
  }

  static CUresult result_of(int threads) {
    return threads == 13 ? CUDA_ERROR_INVALID_VALUE : threads == 17 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  }
  int blocks(CUfunction function, int threads, size_t dynamic = 0) {
    int out = 0;
    CUresult result = custom::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&out, function, threads, dynamic, 0);
    CHECK(result == result_of(threads));
    return out;
  }
  int clusters(CUfunction function, unsigned size, unsigned rest = 0, CUstream stream = nullptr) {
    CUlaunchAttribute cluster;
    std::memset(&cluster, int(rest), sizeof cluster);
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim = {size, 1, 1};
    CUlaunchConfig config{size, 1, 1, 32, 1, 1, 0, stream, &cluster, 1};
    int out = 0;
    CHECK(custom::cuOccupancyMaxActiveClusters(&out, function, &config) == CUDA_SUCCESS);
    CHECK(out > 0);
    return out;
  }
  void set(CUfunction kernel, int value) {
    CHECK(custom::cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, value,
                                       reinterpret_cast<CUkernel>(kernel), 0) == CUDA_SUCCESS);
  }
  size_t asked() const { return session->count(kBlocks) + session->count(kClusters); }

  CUlibrary library = nullptr;
  CUfunction a = nullptr, b = nullptr;
  const CUresult trying, taking_back;
  int tried = 0;
};

}  // namespace

TEST_CASE("An earlier program's queries about a library's functions are prefetched with the first function") {
  User user;
  {
    Program program;
    for (int threads : {32, 64, 96}) CHECK(program.blocks(program.a, threads) == threads);
    for (unsigned size : {2u, 4u}) program.clusters(program.a, size);
    CHECK(program.blocks(program.b, 128, 1024) == 1152);
    CHECK(program.asked() == 6);
  }
  CHECK(user.lines() == 6);
  Program program;
  CHECK(program.asked() == 6);
  CHECK(program.session->in_flight_max() == 9);
  for (int threads : {64, 32, 96}) CHECK(program.blocks(program.a, threads) == threads);
  program.clusters(program.a, 4);
  program.clusters(program.a, 2);
  CHECK(program.blocks(program.b, 128, 1024) == 1152);
  CHECK(program.asked() == 6);
  program.clusters(program.a, 8);
  CHECK(program.asked() == 7);
  CHECK(program.session->count(kTry) == 0);
}

TEST_CASE("A second module of the same image knows what was asked about the first") {
  User user;
  Program program;
  CUmodule modules[2];
  for (size_t i = 0; i < 2; ++i) {
    CUfunction function = nullptr;
    REQUIRE(custom::cuModuleLoadData(&modules[i], ".version 7.0\n.target sm_75\n") == CUDA_SUCCESS);
    REQUIRE(custom::cuModuleGetFunction(&function, modules[i], "probe") == CUDA_SUCCESS);
    for (unsigned size : {1u, 2u, 4u, 8u}) program.clusters(function, size);
    CHECK(program.session->count(kClusters) == 4 * (i + 1));
    CHECK(program.session->in_flight_max() == (i == 0 ? 3 : 7));
  }
}

TEST_CASE("Queries after a setting are prefetched with the function, too, as if it were set") {
  User user;
  std::vector<int> answers;
  for (size_t run = 0; run < 2; ++run) {
    Program program;
    CHECK(program.asked() == (run == 0 ? 0 : 8));
    for (int threads : {32, 64}) program.blocks(program.a, threads);
    for (int value : {1, 0}) {
      program.set(program.a, value);
      for (unsigned size : {2u, 4u, 8u}) answers.push_back(program.clusters(program.a, size));
    }
    CHECK(program.asked() == 8);
    CHECK(program.session->count(kTry) == (run == 0 ? 0 : 3));
    CHECK(program.tried == 0);
  }
  CHECK(user.lines() == 8);
  for (size_t i = 0; i < 6; ++i) CHECK(answers[i + 6] == answers[i] + (i < 3 ? 1000 : 0));
}

TEST_CASE("Queries in a state that cannot be tried out are sent together with the first query in it") {
  User user;
  for (size_t run = 0; run < 2; ++run) {
    Program program;
    const auto kernel = reinterpret_cast<CUkernel>(program.a);
    SUBCASE("a configuration of the cache") {
      CHECK(custom::cuKernelSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_SHARED, 0) == CUDA_SUCCESS);
    }
    SUBCASE("a function that was made of the kernel is set") {
      CUfunction made = nullptr;
      REQUIRE(custom::cuKernelGetFunction(&made, kernel) == CUDA_SUCCESS);
      CHECK(custom::cuFuncSetAttribute(made, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1) == CUDA_SUCCESS);
    }
    SUBCASE("a kernel is set as a function") {
      CHECK(custom::cuFuncSetAttribute(program.a, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1) ==
            CUDA_SUCCESS);
    }
    CHECK(program.asked() == 0);
    program.clusters(program.a, 2);
    CHECK(program.asked() == (run == 0 ? 1 : 3));
    for (unsigned size : {4u, 8u}) program.clusters(program.a, size);
    CHECK(program.asked() == 3);
    CHECK(program.session->count(kTry) == 0);
  }
}

TEST_CASE("A setting by other means than the kernel's own call makes earlier answers unknown") {
  User user;
  {
    Program program;
    program.set(program.a, 1);
    program.clusters(program.a, 2);
  }
  Program program;
  CHECK(program.asked() == 1);
  program.set(program.a, 1);
  program.clusters(program.a, 2);
  CHECK(program.asked() == 1);
  CUfunction made = nullptr;
  REQUIRE(custom::cuKernelGetFunction(&made, reinterpret_cast<CUkernel>(program.a)) == CUDA_SUCCESS);
  for (int value : {0, 1, 0}) {
    CHECK(custom::cuFuncSetAttribute(made, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, value) == CUDA_SUCCESS);
    const size_t before = program.asked();
    for (CUfunction function : {program.a, made}) program.clusters(function, 2);
    CHECK(program.asked() == before + 2);
  }
}

TEST_CASE("Queries that the server cannot try out are sent when the program makes them") {
  User user;
  {
    Program program;
    program.set(program.a, 1);
    program.clusters(program.a, 2);
  }
  Program program("on", CUDA_ERROR_INVALID_VALUE);
  CHECK(program.asked() == 1);
  program.set(program.a, 1);
  CHECK(program.clusters(program.a, 2) < 1000);
  CHECK(program.asked() == 2);
}

TEST_CASE("A function of which the server cannot take back what it has tried out is none") {
  User user;
  {
    Program program;
    program.set(program.a, 1);
    program.clusters(program.a, 2);
  }
  Program program("on", CUDA_SUCCESS, CUDA_ERROR_UNKNOWN);  // finds no kernel
  CHECK(program.session->count(kTry) == 2);
  CUkernel kernel = nullptr;
  CHECK(custom::cuLibraryGetKernel(&kernel, program.library, "another") == CUDA_ERROR_UNKNOWN);
}

TEST_CASE("An answer that a cluster is impossible is cached like others, and any other error is queried again") {
  User user;
  {
    Program program;
    for (int threads : {32, 13, 17, 13, 17}) program.blocks(program.a, threads);
    CHECK(program.asked() == 4);
  }
  CHECK(user.lines() == 2);
  user.write(user.file(), "0 0 0 17 0 of a\n");
  Program program;
  CHECK(program.blocks(program.a, 32) == 32);
  program.blocks(program.a, 13);
  CHECK(program.asked() == 3);
  program.blocks(program.a, 17);
  CHECK(program.asked() == 4);
}

TEST_CASE("A question that names the stream of each thread is asked, but not kept for others") {
  User user;
  Program program;
  for (unsigned size : {2u, 4u, 8u}) program.clusters(program.a, size, 0, CU_STREAM_PER_THREAD);
  CHECK(program.asked() == 3);
  CHECK(user.lines() == 0);
}

TEST_CASE("A stream of the current context says what none says") {
  User user;
  Program program;
  CUstream stream = nullptr;
  REQUIRE(custom::cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  for (unsigned size : {2u, 4u, 8u}) program.clusters(program.a, size, 0, stream);
  for (unsigned size : {2u, 4u, 8u}) program.clusters(program.a, size, 0);
  CHECK(program.asked() == 3);
  CHECK(user.lines() == 3);
}

TEST_CASE("Bytes of an attribute beyond its value make no other query") {
  User user;
  Program program;
  program.clusters(program.a, 2, 0);
  program.clusters(program.a, 2, 0xff);
  CHECK(program.asked() == 1);
}

TEST_CASE("Lines that say nothing cost nobody anything") {
  User user;
  {
    Program program;
    for (int threads : {32, 64}) program.blocks(program.a, threads);
  }
  std::string text = "\n of a\n0 of a\n0  of a\n-1 0 0 1 1 of a\n0 0 0 96 0 of other\n9 0 0 96 0 of a\n";
  for (const char* state : {"8", "8=", "8=1,", "=1", "8=x", "x=1", "8=1,,9=1", "8=99999999999"})
    text += std::string(state) + " 0 0 96 0 of a\n";
  for (const char* question : {"9 0 1 1", "0 0 1", "0 0 1 1 1", "0 0 x 1", "2 1 1 1 32 1 1 0 1 77 4",
                               "2 1 1 1 32 1 1 0 4000000000", "2 1 1 1 32 1 1 0 1 4 2", "-1"})
    text += std::string("0 ") + question + " of a\n";
  user.write(user.file(), text + "0 0 0 96 0 of ");
  Program program;
  program.blocks(program.a, 32);
  CHECK(program.asked() == 2);
  CHECK(program.session->count(kTry) == 0);
}

TEST_CASE("A question is read as it was written") {
  OccupancyQuestion question;
  question.kind = OccupancyKind::cluster_size;
  question.config = {1, 2, 3, 4, 5, 6, 7, nullptr, nullptr, 0};
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {8, 9, 10};
  question.attributes.push_back(attribute);
  attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  question.attributes.push_back(attribute);
  REQUIRE(question.travels());
  CHECK(OccupancyQuestion::parse(question.text()).value().key() == question.key());
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
  question.attributes.push_back(attribute);
  CHECK_FALSE(question.travels());
}

TEST_CASE("With GPUWIRE_LOOK_AHEAD=off nothing is read or written") {
  User user;
  for (int i = 0; i < 2; ++i) {
    Program program("off");
    for (int threads : {32, 64, 96}) program.blocks(program.a, threads);
    CHECK(program.asked() == 3);
  }
  CHECK(user.lines() == 0);
}

}  // namespace gpuwire::client
