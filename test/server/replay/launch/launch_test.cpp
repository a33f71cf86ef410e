#include <doctest/doctest.h>

#include <cstring>

#include "protocol/wire/limits.hpp"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::HandleKind;
using wire::SessionOrdinal;

namespace {

struct Fixture {
  FakeDriver driver;
  FakeSession session{driver};
  uint64_t function = 0, kernel = 0, stream = 0, event = 0;
  Fixture() {
    session.enter_primary();
    function = session.give(HandleKind::function, reinterpret_cast<void*>(0x51));
    kernel = session.give(HandleKind::kernel, reinterpret_cast<void*>(0x52));
    stream = session.give(HandleKind::stream, reinterpret_cast<void*>(0x53));
    event = session.give(HandleKind::event, reinterpret_cast<void*>(0x54));
    driver.log.clear();
  }
  template <class More>
  uint64_t launch(uint64_t what, More&& more) {
    return session.post<schema::Launch>(SessionOrdinal::launch, [&](schema::Launch::Builder params) {
      params.setFunction(what);
      params.setGridX(2), params.setGridY(3), params.setGridZ(4);
      params.setBlockX(5), params.setBlockY(6), params.setBlockZ(7);
      params.setSharedBytes(8);
      more(params);
    });
  }
  template <class More>
  void launch_with(std::vector<CUlaunchAttribute> attributes, More&& more) {
    launch(function, [&](schema::Launch::Builder params) {
      auto data = params.initAttributes(unsigned(attributes.size() * sizeof(CUlaunchAttribute)));
      std::memcpy(data.begin(), attributes.data(), data.size());
      more(params);
    });
  }
};

CUlaunchAttribute attribute(CUlaunchAttributeID id) {
  CUlaunchAttribute made{};
  made.id = id;
  return made;
}

}  // namespace

TEST_CASE_FIXTURE(Fixture,
                  "a launch reaches the driver with its geometry, stream and packed parameters, and needs no reply") {
  uint8_t packed[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  launch(function, [&](schema::Launch::Builder params) {
    params.setStream(stream);
    params.setParameters(kj::arrayPtr(packed, sizeof packed));
  });
  CHECK(driver.log == std::vector<std::string>{"cuLaunchKernel 81 grid 2,3,4 block 5,6,7 shared 8 stream 83"});
  REQUIRE(driver.parameters.size() == sizeof packed);
  CHECK(std::memcmp(driver.parameters.data(), packed, sizeof packed) == 0);
  CHECK(session.sent().empty());
  CHECK(session.failed.empty());
}

TEST_CASE_FIXTURE(Fixture, "a kernel of a library is launched as a function") {
  launch(kernel, [](auto) {});
  CHECK(driver.count("cuLaunchKernel 82") == 1);
  CHECK(driver.parameters.empty());
}

TEST_CASE_FIXTURE(Fixture, "the legacy stream travels as CUDA's constant") {
  launch(function, [](schema::Launch::Builder params) { params.setStream(wire::kStreamLegacy); });
  CHECK(driver.count("cuLaunchKernel 81 grid 2,3,4 block 5,6,7 shared 8 stream 1") == 1);
}

TEST_CASE_FIXTURE(Fixture, "handles never given out, and handles of another kind, are a deferred error") {
  launch(wire::make_handle(HandleKind::function, 99, 1), [](auto) {});
  launch(stream, [](auto) {});
  launch(0, [](auto) {});
  launch(function, [&](schema::Launch::Builder params) { params.setStream(event); });
  launch(function, [&](schema::Launch::Builder params) { params.setStream(2); });
  REQUIRE(session.failed.size() == 5);
  for (auto& failure : session.failed) CHECK(failure.result == CUDA_ERROR_INVALID_HANDLE);
  CHECK(driver.log.empty());
}

TEST_CASE_FIXTURE(Fixture, "the driver's error of a posted launch is a deferred error") {
  driver.failures["cuLaunchKernel"] = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  uint64_t sequence = launch(function, [](auto) {});
  REQUIRE(session.failed.size() == 1);
  CHECK(session.failed[0].sequence == sequence);
  CHECK(session.failed[0].result == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
}

TEST_CASE_FIXTURE(Fixture, "a called launch is answered when the kernel has ended") {
  driver.hold = true;
  uint64_t sequence =
      session.call<schema::Launch>(SessionOrdinal::launch, [&](auto params) { params.setFunction(function); });
  CHECK(session.result(sequence) == -1);
  driver.release();
  session.run_waiters();
  CHECK(session.result(sequence) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "a cooperative launch carries the attribute once") {
  launch(function, [](schema::Launch::Builder params) { params.setCooperative(true); });
  REQUIRE(driver.attributes.size() == 1);
  CHECK(driver.attributes[0].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  CHECK(driver.attributes[0].value.cooperative == 1);
  auto cooperative = attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  cooperative.value.cooperative = 1;
  launch_with({cooperative}, [](schema::Launch::Builder params) { params.setCooperative(true); });
  CHECK(driver.attributes.size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "launch attributes keep their values, and the handles in them become the driver's") {
  auto cluster = attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  cluster.value.clusterDim.x = 4;
  auto completion = attribute(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
  completion.value.launchCompletionEvent.event = reinterpret_cast<CUevent>(event);
  launch_with({cluster, completion}, [](auto) {});
  REQUIRE(driver.attributes.size() == 2);
  CHECK(driver.attributes[0].value.clusterDim.x == 4);
  CHECK(driver.attributes[1].value.launchCompletionEvent.event == reinterpret_cast<CUevent>(0x54));
  CHECK(driver.config.gridDimY == 3);
  CHECK(driver.config.blockDimZ == 7);
  CHECK(driver.config.sharedMemBytes == 8);
}

TEST_CASE_FIXTURE(Fixture, "attributes that are unknown, or name events never given out, do not reach the driver") {
  auto completion = attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);
  completion.value.programmaticEvent.event = reinterpret_cast<CUevent>(stream);
  launch_with({completion}, [](auto) {});
  launch_with({attribute(CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)}, [](auto) {});
  launch(function, [&](schema::Launch::Builder params) {
    int id = 77;
    std::memcpy(params.initAttributes(sizeof(CUlaunchAttribute)).begin(), &id, sizeof id);
  });
  REQUIRE(session.failed.size() == 3);
  CHECK(session.failed[0].result == CUDA_ERROR_INVALID_HANDLE);
  CHECK(session.failed[1].result == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(session.failed[2].result == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(driver.log.empty());
}

TEST_CASE_FIXTURE(Fixture, "parameters and attributes of impossible size end the session") {
  CHECK_THROWS_AS(
      launch(function,
             [](schema::Launch::Builder params) { params.initParameters(wire::kLaunchParameterBytesMax + 1); }),
      server::ProtocolFault);
  CHECK_THROWS_AS(
      launch(function, [](schema::Launch::Builder params) { params.initAttributes(sizeof(CUlaunchAttribute) + 1); }),
      server::ProtocolFault);
  CHECK_THROWS_AS(launch(function,
                         [](schema::Launch::Builder params) {
                           params.initAttributes(sizeof(CUlaunchAttribute) * (wire::kLaunchAttributesMax + 1));
                         }),
                  server::ProtocolFault);
  CHECK(driver.log.empty());
}

TEST_CASE_FIXTURE(Fixture, "the largest number of attributes passes") {
  launch_with(std::vector<CUlaunchAttribute>(wire::kLaunchAttributesMax),
              [](schema::Launch::Builder params) { params.setCooperative(true); });
  CHECK(driver.attributes.size() == wire::kLaunchAttributesMax + 1);
}

TEST_CASE_FIXTURE(Fixture, "a function that the driver lacks is not supported") {
  driver.table.cuLaunchKernel = nullptr;
  launch(function, [](auto) {});
  REQUIRE(session.failed.size() == 1);
  CHECK(session.failed[0].result == CUDA_ERROR_NOT_SUPPORTED);
}
