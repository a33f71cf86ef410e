#include "server/replay/memory/memory.hpp"

#include "schema/api_memory.capnp.h"
#include "schema/api_virtual_memory.capnp.h"
#include "server/driver_table.hpp"
#include "server/hand.hpp"
#include "server/session_handlers.hpp"
#include "server/replay/stream/host_callbacks.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/call/generated_support.hpp"
#include "server/replay/host_memory/host_regions.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/session/replay_state.hpp"

namespace gpuwire::server {

bool postpone(Replay& replay, PostponedFree free) {
  HostCallbacks& callbacks = replay.state().callbacks();
  auto& postponed = replay.state().postponed_frees();
  if (callbacks.unanswered() == 0 || postponed.size() >= kPostponedFreesMax) return false;
  free.behind = callbacks.newest_run();
  postponed.push_back(free);
  return true;
}

void run_postponed_frees(Replay& replay) {
  auto& postponed = replay.state().postponed_frees();
  while (!postponed.empty() && replay.state().callbacks().answered_up_to(postponed.front().behind)) [[unlikely]] {
      PostponedFree free = postponed.front();
      postponed.pop_front();
      if (replay.state().contexts().make_current(free.context) != CUDA_SUCCESS) continue;
      if (free.region) {
        replay.state().host_regions().destroy(free.address);
      } else {
        drive(replay.driver().cuMemFree_v2, free.address);
      }
    }
}

// A client sends it in the place of cuMemFree of memory that it keeps, and neither beside captures, which it would end,
// nor while a stream may stand at one of its callbacks; one that does harms itself.
void await_rest(Replay& replay, Call& call) { finish(replay, call, drive(replay.driver().cuCtxSynchronize)); }

void keeping_memory(Replay& replay, Call& call) {
  replay.state().note_keeping_memory(call.message.getRoot<schema::KeepingMemory>().getKeeps());
  finish(replay, call, CUDA_SUCCESS);
}

namespace hand {

// cuMemFree waits until the device is at rest. Were it to wait for a stream that stands at a callback of the client,
// all other calls would wait with it. The memory is freed when the answer has come; the client no longer names it.
void cuMemFree_v2(Replay& replay, Call& call) {
  CUdeviceptr address = call.message.getRoot<schema::CuMemFreeV2Params>().getDptr();
  if (address != 0 && postpone(replay, {call.header.context, address, false}))
    return finish(replay, call, CUDA_SUCCESS);
  finish(replay, call, drive(replay.driver().cuMemFree_v2, address));
}

// The driver gives the handle that there is, held once more. The client counts its program's holders, so the driver's
// count stays at one.
void cuMemRetainAllocationHandle(Replay& replay, Call& call) {
  Incoming incoming(replay, call, false);
  auto params = call.message.getRoot<schema::CuMemRetainAllocationHandleParams>();
  auto function = replay.driver().cuMemRetainAllocationHandle;
  CUmemGenericAllocationHandle native = 0;
  uint64_t handle = 0;
  CUresult result = incoming.ready(function != nullptr);
  if (!result) result = function(&native, from_word<void*>(params.getAddr()));
  if (!result) {
    handle = incoming.known(wire::HandleKind::memory_allocation, word(native));
    if (handle) {
      drive(replay.driver().cuMemRelease, native);
    } else {
      incoming.insert(wire::HandleKind::memory_allocation, handle = params.getHandle(), word(native));
    }
  }
  ReplyMessage<schema::CuMemRetainAllocationHandleResults> reply(0, 0);
  if (!result) reply.results().setHandle(handle);
  incoming.reply(reply.message(), reply.results(), result);
}

}  // namespace hand

}  // namespace gpuwire::server
