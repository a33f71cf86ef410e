// Questions about occupancy that earlier programs asked: what is kept of them, and how they are asked together.
#include "client_stub/driver/launch/known_occupancy_questions.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

#include "client/forward.hpp"
#include "client_stub/driver/module/module_state.hpp"
#include "schema/api_occupancy.capnp.h"
#include "test/client_stub/driver/memory/fixture.hpp"
#include "test/client_stub/driver/module/look_ahead_user.hpp"

namespace gpuwire::client {
namespace {

using test::DeviceProcess;
using test::ordinal;
using wire::SessionOrdinal;

constexpr auto kBlocks = forward_ordinal::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
               kClusters = forward_ordinal::cuOccupancyMaxActiveClusters;

struct User : test::LookAheadUser {
  User() : LookAheadUser("occupancy") {}

  size_t lines() const {
    if (files().empty()) return 0;
    const std::string all = text();
    return size_t(std::count(all.begin(), all.end(), '\n'));
  }
};

// A program of the user's with a library of two kernels. The server answers how many threads a block has, and how many
// blocks a cluster; it knows no block of 13 threads.
struct Program : DeviceProcess {
  explicit Program(const char* look_ahead = "on") : DeviceProcess(1, "0", look_ahead) {
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
        if (question.getBlockSize() == 13) results.setResult(CUDA_ERROR_INVALID_VALUE);
        else results.setNumBlocks(question.getBlockSize() + int(question.getDynamicSMemSize()));
      });
    });
    session->serve(kClusters, [](const test::SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
      auto results = reply.initRoot<schema::CuOccupancyMaxActiveClustersResults>();
      frame.read<schema::CuOccupancyMaxActiveClustersParams>(
          [&](auto question) { results.setNumClusters(int(question.getConfig().size())); });
    });
    REQUIRE(hand::cuLibraryLoadData(&library, ".version 7.0\n.target sm_75\n", nullptr, nullptr, 0, nullptr, nullptr,
                                    0) == CUDA_SUCCESS);
    for (auto [kernel, name] : {std::pair{&a, "a"}, std::pair{&b, "b of c"}})
      REQUIRE(hand::cuLibraryGetKernel(reinterpret_cast<CUkernel*>(kernel), library, name) == CUDA_SUCCESS);
  }

  int blocks(CUfunction function, int threads, size_t dynamic = 0) {
    int out = 0;
    CUresult result = hand::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&out, function, threads, dynamic, 0);
    CHECK(result == (threads == 13 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS));
    return out;
  }
  void clusters(CUfunction function, unsigned size, unsigned rest = 0, CUstream stream = nullptr) {
    CUlaunchAttribute cluster;
    std::memset(&cluster, int(rest), sizeof cluster);
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim = {size, 1, 1};
    CUlaunchConfig config{size, 1, 1, 32, 1, 1, 0, stream, &cluster, 1};
    int out = 0;
    CHECK(hand::cuOccupancyMaxActiveClusters(&out, function, &config) == CUDA_SUCCESS);
    CHECK(out > 0);
  }
  size_t asked() const { return session->count(kBlocks) + session->count(kClusters); }

  CUlibrary library = nullptr;
  CUfunction a = nullptr, b = nullptr;
};

}  // namespace

TEST_CASE("What an earlier program asked about a function is asked together with the first question about it") {
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
  CHECK(program.blocks(program.a, 64) == 64);
  CHECK(program.asked() == 5);
  CHECK(program.session->in_flight_max() == 5);
  CHECK(program.blocks(program.a, 32) == 32);
  CHECK(program.blocks(program.a, 96) == 96);
  program.clusters(program.a, 4);
  program.clusters(program.a, 2);
  CHECK(program.asked() == 5);
  program.clusters(program.a, 8);
  CHECK(program.blocks(program.b, 128, 1024) == 1152);
  CHECK(program.asked() == 7);
}

TEST_CASE("A second module of the same image knows what was asked about the first") {
  User user;
  Program program;
  CUmodule modules[2];
  for (size_t i = 0; i < 2; ++i) {
    CUfunction function = nullptr;
    REQUIRE(hand::cuModuleLoadData(&modules[i], ".version 7.0\n.target sm_75\n") == CUDA_SUCCESS);
    REQUIRE(hand::cuModuleGetFunction(&function, modules[i], "probe") == CUDA_SUCCESS);
    const size_t before = program.session->count(kClusters);
    program.clusters(function, 1);
    CHECK(program.session->count(kClusters) == before + (i == 0 ? 1 : 4));
    for (unsigned size : {1u, 2u, 4u, 8u}) program.clusters(function, size);
    CHECK(program.session->count(kClusters) == before + 4);
  }
}

TEST_CASE("What was asked after something was set is asked ahead when that is set again") {
  User user;
  for (size_t run = 0; run < 2; ++run) {
    Program program;
    for (int threads : {32, 64}) program.blocks(program.a, threads);
    CHECK(program.asked() == 2);
    for (int value : {1, 0}) {
      CHECK(hand::cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, value,
                                       reinterpret_cast<CUkernel>(program.a), 0) == CUDA_SUCCESS);
      const size_t before = program.asked();
      program.clusters(program.a, 2);
      CHECK(program.asked() == before + (run == 0 ? 1 : 3));
      for (unsigned size : {4u, 8u}) program.clusters(program.a, size);
      CHECK(program.asked() == before + 3);
    }
  }
  CHECK(user.lines() == 8);
}

TEST_CASE("An answer that is an error, or was refused ahead, is asked for again") {
  User user;
  {
    Program program;
    for (int threads : {32, 64}) program.blocks(program.a, threads);
  }
  std::ofstream(user.file(), std::ios::app) << "0 0 0 13 0 of a\n";
  Program program;
  CHECK(program.blocks(program.a, 32) == 32);
  CHECK(program.asked() == 3);
  program.blocks(program.a, 13);
  CHECK(program.asked() == 4);
}

TEST_CASE("What only this process knows is asked, but not kept for others") {
  User user;
  Program program;
  CUstream stream = nullptr;
  REQUIRE(hand::cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  for (unsigned size : {2u, 4u, 8u}) program.clusters(program.a, size, 0, stream);
  CHECK(program.asked() == 3);
  CHECK(user.lines() == 0);
}

TEST_CASE("What an attribute has beyond its value makes no other question") {
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
  std::ofstream file(user.file(), std::ios::app);
  file << "\n of a\n0 of a\n0  of a\n-1 0 0 1 1 of a\n0 0 0 96 0 of other\n9 0 0 96 0 of a\n";
  for (const char* question : {"9 0 1 1", "0 0 1", "0 0 1 1 1", "0 0 x 1", "2 1 1 1 32 1 1 0 1 77 4",
                               "2 1 1 1 32 1 1 0 4000000000", "2 1 1 1 32 1 1 0 1 4 2", "-1"})
    file << "0 " << question << " of a\n";
  file << "0 0 0 96 0 of ";
  file.close();
  Program program;
  program.blocks(program.a, 32);
  CHECK(program.asked() == 2);
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
