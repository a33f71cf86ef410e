// Creation and destruction of contexts.
#include "schema/api_context.capnp.h"
#include "server/driver_table.hpp"
#include "server/custom.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/replay/stream/host_callbacks.hpp"
#include "server/session_handlers.hpp"

namespace gpuwire::server {

namespace {

// The end of a context also ends callbacks in its streams that the driver skipped after a fault.
void ended(Replay& replay, Call& call, uint64_t handle, CUresult result) {
  if (result == CUDA_SUCCESS) replay.state().callbacks().forget_context(wire_context(handle));
  finish(replay, call, result);
}

}  // namespace

void retain_primary(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::RetainPrimary>();
  finish(replay, call,
         replay.state().contexts().retain_primary(params.getContext(), params.getDevice(), params.getFlags()));
}

void release_primary(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::RetainPrimary>();
  ended(replay, call, params.getContext(), replay.state().contexts().release_primary(params.getContext()));
}

void reset_primary(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::RetainPrimary>();
  ended(replay, call, params.getContext(), replay.state().contexts().reset_primary(params.getContext()));
}

namespace custom {

void cuCtxCreate_v4(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::CuCtxCreateV4Params>();
  const DriverTable& driver = replay.driver();
  CUcontext native = nullptr;
  CUdevice device = params.getDev();
  CUresult result = driver.cuCtxCreate_v4 ? driver.cuCtxCreate_v4(&native, nullptr, params.getFlags(), device)
                                          : drive(driver.cuCtxCreate_v2, &native, params.getFlags(), device);
  if (result == CUDA_SUCCESS) {
    // cuCtxCreate pushed the context; ContextTable alone decides which context is current.
    CUcontext popped = nullptr;
    drive(driver.cuCtxPopCurrent_v2, &popped);
    if (!replay.state().contexts().adopt(params.getPctx(), native, device)) {
      drive(driver.cuCtxDestroy_v2, native);
      result = CUDA_ERROR_INVALID_HANDLE;
    }
  }
  finish(replay, call, result);
}

void cuCtxDestroy_v2(Replay& replay, Call& call) {
  uint64_t handle = call.message.getRoot<schema::CuCtxDestroyV2Params>().getCtx();
  ended(replay, call, handle, replay.state().contexts().destroy(handle));
}

}  // namespace custom

}  // namespace gpuwire::server
