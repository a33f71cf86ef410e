#include "server/replay/memory.hpp"

#include <utility>
#include <vector>

#include "schema/api_memory.capnp.h"
#include "server/driver_table.hpp"
#include "server/hand.hpp"
#include "server/replay/callbacks.hpp"
#include "server/replay/contexts.hpp"
#include "server/replay/host_regions.hpp"
#include "server/replay/reply.hpp"
#include "server/replay/session_state.hpp"

namespace gpuwire::server {

void run_postponed_frees(Replay& replay) {
  if (replay.state().postponed_frees().empty()) [[likely]] return;
  if (replay.state().callbacks().unanswered() != 0) return;
  for (const PostponedFree& postponed : std::exchange(replay.state().postponed_frees(), {})) {
    if (replay.state().contexts().make_current(postponed.context) != CUDA_SUCCESS) continue;
    if (postponed.region) {
      replay.state().host_regions().destroy(postponed.address);
    } else {
      drive(replay.driver().cuMemFree_v2, postponed.address);
    }
  }
}

namespace hand {

// cuMemFree waits until the device is at rest. Were it to wait for a stream that stands at a callback of the client, the executor could
// not read the client's answer to it. The memory is freed when the answer has come; the client no longer names it.
void cuMemFree_v2(Replay& replay, Call& call) {
  CUdeviceptr address = call.message.getRoot<schema::CuMemFreeV2Params>().getDptr();
  auto& postponed = replay.state().postponed_frees();
  if (address != 0 && replay.state().callbacks().unanswered() > 0 && postponed.size() < kPostponedFreesMax) {
    postponed.push_back({call.header.context, address, false});
    return finish(replay, call, CUDA_SUCCESS);
  }
  finish(replay, call, drive(replay.driver().cuMemFree_v2, address));
}

}  // namespace hand

}  // namespace gpuwire::server
