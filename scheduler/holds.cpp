// Explains why a session is held at its gate, and by which session.
#include <algorithm>

#include "scheduler/policy_state.hpp"

namespace gpuwire::scheduler {

void Policy::State::explain_hold(const Session& session, SessionAccount& account) const {
  if (session.gate.open || !session.seen.waiting) return;
  if (session.barred_by != nullptr) {
    account.hold = Hold::sibling;
    account.held_by = session.barred_by->id;
    return;
  }
  if (now < session.ignored_until) {
    account.hold = Hold::no_show;
    return;
  }
  if (session.leased) {
    account.hold = Hold::drain;
    if (const Session* other = undrained_for(session)) account.held_by = other->id;
    return;
  }
  account.hold = session.devices.size() > 1 ? Hold::gang : Hold::turn;
  const Session* by = nullptr;
  for (const DeviceIndex index : session.devices) {
    for (const Session* other : devices[index].sessions) {
      if (other != &session && other->selected && (by == nullptr || other->rank < by->rank)) by = other;
    }
  }
  if (by == nullptr) return;
  account.held_by = by->id;
  if (by->rank < session.rank) account.hold = Hold::higher;
  else if (by->rank == session.rank && session.devices.size() == 1) account.hold = Hold::turn;
}

}  // namespace gpuwire::scheduler
