#include "server/replay/session/postponed_frees.hpp"

#include "server/driver_table.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/host_memory/host_regions.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/replay/stream/host_callbacks.hpp"

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

}  // namespace gpuwire::server
