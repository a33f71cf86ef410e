#include <doctest/doctest.h>

#include "schema/api_context.capnp.h"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::HandleKind;
using wire::SessionOrdinal;

namespace {

constexpr uint32_t kCtxCreate = 1200, kCtxDestroy = 1201;

struct Fixture {
  FakeDriver driver;
  FakeSession session{driver};

  uint64_t primary(SessionOrdinal ordinal, uint64_t handle, int device = 0) {
    return session.call<schema::RetainPrimary>(ordinal, [&](schema::RetainPrimary::Builder params) {
      params.setContext(handle);
      params.setDevice(device);
    });
  }
  uint64_t create(uint64_t handle) {
    return session.frame<schema::CuCtxCreateV4Params>(
        wire::FrameKind::called, kCtxCreate,
        [&](schema::CuCtxCreateV4Params::Builder params) { params.setPctx(handle); });
  }
  uint64_t destroy(uint64_t handle) {
    return session.frame<schema::CuCtxDestroyV2Params>(
        wire::FrameKind::called, kCtxDestroy,
        [&](schema::CuCtxDestroyV2Params::Builder params) { params.setCtx(handle); });
  }
  // A copy gives the context staging and events of its own.
  uint64_t use() {
    static std::byte memory[16];
    return session.call<schema::CopyFromDevice>(SessionOrdinal::copy_from_device,
                                                [&](schema::CopyFromDevice::Builder params) {
                                                  params.setSource(reinterpret_cast<uint64_t>(memory));
                                                  params.setBytes(sizeof memory);
                                                });
  }
  uint64_t context(uint32_t index) { return wire::make_handle(HandleKind::context, index, 1); }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "a primary context is retained once, however often its handle is bound") {
  CHECK(session.result(primary(SessionOrdinal::retain_primary, context(1))) == CUDA_SUCCESS);
  CHECK(session.result(primary(SessionOrdinal::retain_primary, context(1))) == CUDA_SUCCESS);
  CHECK(driver.primaries[0] == 1);
  session.frame_context = uint32_t(context(1));
  CHECK(session.result(use()) == CUDA_SUCCESS);
  CHECK(driver.current == reinterpret_cast<CUcontext>(uintptr_t{0x100}));
}

TEST_CASE_FIXTURE(Fixture, "a reference that the worker took ahead takes the place of the session's own") {
  session.prewarmed = true;
  driver.primaries[0] = 1;
  driver.contexts.insert(reinterpret_cast<void*>(uintptr_t{0x100}));
  primary(SessionOrdinal::retain_primary, context(1));
  CHECK(driver.primaries[0] == 1);
  primary(SessionOrdinal::release_primary, context(1));
  CHECK(driver.primaries[0] == 0);
}

TEST_CASE_FIXTURE(Fixture,
                  "a frame of a context that was never bound is answered with invalid context and reaches no driver") {
  session.frame_context = uint32_t(context(9));
  CHECK(session.result(use()) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(driver.log.empty());
}

TEST_CASE_FIXTURE(Fixture, "a call that needs a context and names none is answered with invalid context") {
  CHECK(session.result(use()) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE_FIXTURE(Fixture, "why a primary context could not be had is told to every frame in it") {
  driver.failures["cuDevicePrimaryCtxRetain"] = CUDA_ERROR_OUT_OF_MEMORY;
  CHECK(session.result(primary(SessionOrdinal::retain_primary, context(1))) == CUDA_ERROR_OUT_OF_MEMORY);
  session.frame_context = uint32_t(context(1));
  CHECK(session.result(use()) == CUDA_ERROR_OUT_OF_MEMORY);
  driver.failures.clear();
  CHECK(session.result(primary(SessionOrdinal::retain_primary, context(1))) == CUDA_SUCCESS);
  CHECK(session.result(use()) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture, "a handle of another kind or device cannot be bound to a primary context") {
  CHECK(session.result(primary(SessionOrdinal::retain_primary, wire::make_handle(HandleKind::stream, 1, 1))) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(session.result(primary(SessionOrdinal::retain_primary, 0)) == CUDA_ERROR_INVALID_HANDLE);
  primary(SessionOrdinal::retain_primary, context(1));
  CHECK(session.result(primary(SessionOrdinal::retain_primary, context(1), 1)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(driver.primaries[0] == 1);
}

TEST_CASE_FIXTURE(Fixture, "releasing a primary context gives back all that the replay held in it") {
  primary(SessionOrdinal::retain_primary, context(1));
  session.frame_context = uint32_t(context(1));
  use();
  uint64_t stream = session.give(HandleKind::stream, reinterpret_cast<void*>(0x77));
  CHECK_FALSE(driver.events.empty());
  CHECK(session.result(primary(SessionOrdinal::release_primary, context(1))) == CUDA_SUCCESS);
  CHECK(driver.events.empty());
  CHECK(driver.registered.empty());
  CHECK(driver.primaries[0] == 0);
  void* native = nullptr;
  CHECK_FALSE(session.handles().find(HandleKind::stream, stream, native));
  CHECK(session.result(use()) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(session.result(primary(SessionOrdinal::release_primary, context(1))) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE_FIXTURE(Fixture, "a primary context that was reset is there again when it is used next") {
  primary(SessionOrdinal::retain_primary, context(1));
  session.frame_context = uint32_t(context(1));
  use();
  CHECK(session.result(primary(SessionOrdinal::reset_primary, context(1))) == CUDA_SUCCESS);
  CHECK(driver.count("cuDevicePrimaryCtxReset_v2") == 1);
  CHECK(driver.primaries[0] == 0);
  CHECK(driver.registered.empty());
  CHECK(session.result(use()) == CUDA_SUCCESS);
  CHECK(driver.primaries[0] == 1);
}

TEST_CASE_FIXTURE(Fixture,
                  "a created context serves frames until it is destroyed, and its destruction waits for the device") {
  CHECK(session.result(create(context(5))) == CUDA_SUCCESS);
  session.frame_context = uint32_t(context(5));
  CHECK(session.result(use()) == CUDA_SUCCESS);
  session.frame_context = 0;
  driver.log.clear();
  CHECK(session.result(destroy(context(5))) == CUDA_SUCCESS);
  CHECK(driver.log.front() == "cuCtxSynchronize");
  CHECK(driver.log.back() == "cuCtxDestroy_v2");
  CHECK(driver.contexts.empty());
  CHECK(driver.events.empty());
  CHECK(driver.registered.empty());
  session.frame_context = uint32_t(context(5));
  CHECK(session.result(use()) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE_FIXTURE(Fixture, "a context whose handle is taken or malformed is destroyed again at once") {
  create(context(5));
  CHECK(session.result(create(context(5))) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(session.result(create(wire::make_handle(HandleKind::event, 6, 1))) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(session.result(create(0)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(driver.contexts.size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "contexts of another kind, or not the session's, cannot be destroyed") {
  primary(SessionOrdinal::retain_primary, context(1));
  CHECK(session.result(destroy(context(1))) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(session.result(destroy(context(2))) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(session.result(primary(SessionOrdinal::release_primary, context(2))) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(session.result(primary(SessionOrdinal::reset_primary, context(2))) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE_FIXTURE(Fixture, "the end of a session leaves nothing in the driver") {
  primary(SessionOrdinal::retain_primary, context(1));
  create(context(5));
  for (uint64_t handle : {context(1), context(5)}) {
    session.frame_context = uint32_t(handle);
    use();
  }
  driver.libraries.insert(reinterpret_cast<void*>(0x99));
  session.give(HandleKind::library, reinterpret_cast<void*>(0x99));
  CHECK(session.end());
  CHECK(driver.contexts.empty());
  CHECK(driver.libraries.empty());
  CHECK(driver.events.empty());
  CHECK(driver.registered.empty());
  CHECK(driver.primaries[0] == 0);
}

TEST_CASE_FIXTURE(Fixture,
                  "a copy on a stream of another context is made in that one, and the next frame is back in its own") {
  primary(SessionOrdinal::retain_primary, context(1), 0);
  primary(SessionOrdinal::retain_primary, context(2), 1);
  session.frame_context = uint32_t(context(1));
  use();
  uint64_t stream = session.give(HandleKind::stream, reinterpret_cast<void*>(0x77));
  driver.stream_contexts[reinterpret_cast<CUstream>(0x77)] = reinterpret_cast<CUcontext>(uintptr_t{0x101});
  std::byte memory[16];
  uint64_t sequence = session.call<schema::CopyFromDevice>(SessionOrdinal::copy_from_device,
                                                           [&](schema::CopyFromDevice::Builder params) {
                                                             params.setSource(reinterpret_cast<uint64_t>(memory));
                                                             params.setBytes(sizeof memory);
                                                             params.setStream(stream);
                                                           });
  CHECK(session.result(sequence) == CUDA_SUCCESS);
  CHECK(driver.current == reinterpret_cast<CUcontext>(uintptr_t{0x101}));
  use();
  CHECK(driver.current == reinterpret_cast<CUcontext>(uintptr_t{0x100}));
}
