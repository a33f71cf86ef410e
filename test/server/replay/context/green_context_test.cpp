#include <doctest/doctest.h>

#include <cstring>

#include "schema/api_green_context.capnp.h"
#include "server/replay/device/device_resources.hpp"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::HandleKind;
using wire::SessionOrdinal;

namespace {

constexpr uint32_t kGenerate = 3402, kDeviceResource = 3401, kSplit = 3403;

// The driver's hidden part of a resource, and the resource of its last call.
constexpr unsigned char kSecret = 0x5c;
CUdevResource g_given{};
FakeDriver* g_driver = nullptr;

CUdevResource native_resource(unsigned count) {
  CUdevResource resource{};
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  std::memset(resource._internal_padding, kSecret, sizeof resource._internal_padding);
  resource.sm.smCount = count;
  return resource;
}

CUresult CUDAAPI device_resource(CUdevice, CUdevResource* out, CUdevResourceType) {
  *out = native_resource(132);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI split(CUdevResource* result, unsigned* count, const CUdevResource* input, CUdevResource* rest,
                       unsigned, unsigned) {
  g_given = *input;
  for (unsigned i = 0; i < *count; ++i) result[i] = native_resource(16 + i);
  *rest = native_resource(8);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI generate(CUdevResourceDesc* out, CUdevResource* resources, unsigned) {
  g_given = resources[0];
  *out = static_cast<CUdevResourceDesc>(g_driver->make());
  return CUDA_SUCCESS;
}
CUresult CUDAAPI green_create(CUgreenCtx* out, CUdevResourceDesc, CUdevice, unsigned) {
  if (CUresult failed = g_driver->note("cuGreenCtxCreate", "cuGreenCtxCreate")) return failed;
  *out = static_cast<CUgreenCtx>(g_driver->make());
  return CUDA_SUCCESS;
}
CUresult CUDAAPI from_green(CUcontext* out, CUgreenCtx green) {
  if (CUresult failed = g_driver->note("cuCtxFromGreenCtx", "")) return failed;
  *out = reinterpret_cast<CUcontext>(green);
  g_driver->contexts.insert(*out);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI green_destroy(CUgreenCtx green) {
  g_driver->note("cuGreenCtxDestroy", "cuGreenCtxDestroy");
  g_driver->contexts.erase(green);
  return CUDA_SUCCESS;
}

struct Fixture {
  FakeDriver driver;
  FakeSession session{driver};
  static constexpr uint64_t kGreen = wire::make_handle(HandleKind::context, 7, 1);
  uint64_t descriptor = 0;

  Fixture() {
    g_driver = &driver;
    driver.table.cuDeviceGetDevResource = device_resource;
    driver.table.cuDevSmResourceSplitByCount = split;
    driver.table.cuDevResourceGenerateDesc = generate;
    driver.table.cuGreenCtxCreate = green_create;
    driver.table.cuCtxFromGreenCtx = from_green;
    driver.table.cuGreenCtxDestroy = green_destroy;
    session.enter_primary();
    descriptor = session.give(HandleKind::device_resource_desc, reinterpret_cast<void*>(0x900));
  }

  CUdevResource whole() {
    uint64_t asked =
        session.frame<schema::CuDeviceGetDevResourceParams>(wire::FrameKind::called, kDeviceResource, [](auto) {});
    CUdevResource sealed{};
    auto data = session.reply(asked)->as<schema::CuDeviceGetDevResourceResults>().getResource();
    REQUIRE(data.size() == sizeof sealed);
    std::memcpy(&sealed, data.begin(), sizeof sealed);
    return sealed;
  }
  int generate_from(const CUdevResource& resource) {
    return session.result(
        session.frame<schema::CuDevResourceGenerateDescParams>(wire::FrameKind::called, kGenerate, [&](auto params) {
          params.setPhDesc(wire::make_handle(HandleKind::device_resource_desc, ++next_, 1));
          params.setResources(kj::arrayPtr(reinterpret_cast<const kj::byte*>(&resource), sizeof resource));
          params.setNbResources(1);
        }));
  }
  int ask(SessionOrdinal ordinal, uint64_t context, uint64_t primary = FakeSession::kPrimary) {
    uint64_t named = descriptor;
    return session.result(session.call<schema::GreenContext>(ordinal, [&](schema::GreenContext::Builder params) {
      params.setContext(context);
      params.setPrimary(primary);
      params.setDescriptor(named);
      params.setFlags(CU_GREEN_CTX_DEFAULT_STREAM);
    }));
  }
  bool known(HandleKind kind, uint64_t handle) {
    void* native = nullptr;
    return session.handles().find(kind, handle, native);
  }

 private:
  uint32_t next_ = 100;
};

}  // namespace

TEST_CASE_FIXTURE(Fixture,
                  "the client sees of a resource what is told of it, and nothing of what the driver keeps there") {
  CUdevResource sealed = whole();
  CHECK(sealed.type == CU_DEV_RESOURCE_TYPE_SM);
  CHECK(sealed.sm.smCount == 132);
  for (unsigned char byte : sealed._internal_padding) CHECK(byte != kSecret);
}

TEST_CASE_FIXTURE(Fixture, "the driver is given its own bytes, whatever the client has done to them") {
  CUdevResource sealed = whole();
  sealed.sm.smCount = 9999;
  sealed._internal_padding[sizeof sealed._internal_padding - 1] = 0xff;
  CHECK(generate_from(sealed) == CUDA_SUCCESS);
  CUdevResource expected = native_resource(132);
  CHECK(std::memcmp(&g_given, &expected, sizeof expected) == 0);
}

TEST_CASE_FIXTURE(Fixture, "a resource that this session was not given reaches no driver") {
  CUdevResource invented = native_resource(132);
  g_given = {};
  CHECK(generate_from(invented) == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CHECK(generate_from(CUdevResource{}) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CHECK(g_given.type == CU_DEV_RESOURCE_TYPE_INVALID);
}

TEST_CASE_FIXTURE(Fixture, "the parts of a split are resources of the driver's, too") {
  CUdevResource input = whole();
  uint64_t asked =
      session.frame<schema::CuDevSmResourceSplitByCountParams>(wire::FrameKind::called, kSplit, [&](auto params) {
        params.setResultValueWanted(true);
        params.setNbGroups(2);
        params.setInput(kj::arrayPtr(reinterpret_cast<const kj::byte*>(&input), sizeof input));
      });
  auto results = session.reply(asked)->as<schema::CuDevSmResourceSplitByCountResults>();
  REQUIRE(results.getResultValue().size() == 2 * sizeof(CUdevResource));
  CUdevResource parts[2];
  std::memcpy(parts, results.getResultValue().begin(), sizeof parts);
  CHECK(parts[1].sm.smCount == 17);
  CHECK(generate_from(parts[1]) == CUDA_SUCCESS);
  CHECK(g_given.sm.smCount == 17);
}

TEST_CASE("resources are kept up to a limit, the newest of them, and the same one once") {
  server::DeviceResources resources;
  CUdevResource first = resources.seal(native_resource(1));
  CUdevResource again = resources.seal(native_resource(1));
  CHECK(std::memcmp(&first, &again, sizeof first) == 0);
  CHECK(resources.size() == 1);
  for (unsigned i = 0; i < server::kDeviceResourcesMax; ++i) resources.seal(native_resource(100 + i));
  CHECK(resources.size() == server::kDeviceResourcesMax);
  CHECK(resources.find(first) == nullptr);
  CHECK(resources.find(resources.seal(native_resource(105))) != nullptr);
}

TEST_CASE_FIXTURE(Fixture, "a green context is a context of the session until it is destroyed") {
  CHECK(ask(SessionOrdinal::green_create, kGreen) == CUDA_SUCCESS);
  session.frame_context = uint32_t(kGreen);
  uint64_t stream = 0;
  CHECK(session.result(session.call<schema::Result>(SessionOrdinal::ping, [](auto) {})) == CUDA_SUCCESS);
  CHECK(driver.contexts.count(driver.current) == 1);
  CHECK(driver.current != reinterpret_cast<CUcontext>(uintptr_t{0x100}));
  stream = session.give(HandleKind::stream, reinterpret_cast<void*>(0x77));
  uint64_t event = session.give(HandleKind::event, reinterpret_cast<void*>(0x78));
  CHECK(ask(SessionOrdinal::green_destroy, kGreen) == CUDA_SUCCESS);
  CHECK(driver.count("cuGreenCtxDestroy") == 1);
  // Its streams end with it, the other objects belong to the primary context.
  CHECK_FALSE(known(HandleKind::stream, stream));
  CHECK(known(HandleKind::event, event));
  CHECK(session.result(session.call<schema::Result>(SessionOrdinal::ping, [](auto) {})) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(ask(SessionOrdinal::green_destroy, kGreen) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE_FIXTURE(Fixture, "waits for a context with green ones owe the driver a synchronising call") {
  CHECK_FALSE(session.sync_duties().any());
  CHECK(ask(SessionOrdinal::green_create, kGreen) == CUDA_SUCCESS);
  CHECK(session.sync_duties().any());
}

TEST_CASE_FIXTURE(Fixture, "a green context is made of a primary context that is bound, under a number that is free") {
  CHECK(ask(SessionOrdinal::green_create, kGreen, wire::make_handle(HandleKind::context, 3, 1)) ==
        CUDA_ERROR_INVALID_CONTEXT);
  CHECK(ask(SessionOrdinal::green_create, FakeSession::kPrimary) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(ask(SessionOrdinal::green_create, kGreen) == CUDA_SUCCESS);
  CHECK(ask(SessionOrdinal::green_create, kGreen) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(ask(SessionOrdinal::green_create, wire::make_handle(HandleKind::context, 8, 1), kGreen) ==
        CUDA_ERROR_INVALID_CONTEXT);
  CHECK(driver.count("cuGreenCtxCreate") == 1);
  CHECK(ask(SessionOrdinal::green_destroy, FakeSession::kPrimary) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE_FIXTURE(Fixture, "a green context that cannot become a context is given back") {
  driver.failures["cuCtxFromGreenCtx"] = CUDA_ERROR_OUT_OF_MEMORY;
  CHECK(ask(SessionOrdinal::green_create, kGreen) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(driver.count("cuGreenCtxDestroy") == 1);
}

TEST_CASE_FIXTURE(Fixture,
                  "green contexts end before the primary context that they are made of, and with the session") {
  CHECK(ask(SessionOrdinal::green_create, kGreen) == CUDA_SUCCESS);
  session.call<schema::RetainPrimary>(SessionOrdinal::reset_primary,
                                      [](auto params) { params.setContext(FakeSession::kPrimary); });
  CHECK(driver.count("cuGreenCtxDestroy") == 1);
  CHECK(ask(SessionOrdinal::green_create, kGreen) == CUDA_SUCCESS);
  CHECK(session.end());
  CHECK(driver.count("cuGreenCtxDestroy") == 2);
  CHECK(driver.contexts.empty());
}
