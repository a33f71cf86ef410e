// Sets the gates of the selected sessions, and computes the time of the next decision.
#include <algorithm>

#include "scheduler/policy_state.hpp"

namespace gpuwire::scheduler {
namespace {

// Work queued without a bound would delay sessions of equal rank that were active within this time.
constexpr Duration kNearEqual = std::chrono::seconds(2);
constexpr Duration kSettleEvery = std::chrono::milliseconds(100);
// The poll interval at a holder whose gate closes once it is quiet.
constexpr Duration kPollForPause = std::chrono::microseconds(75);
constexpr Duration kDecideAgainMin = std::chrono::microseconds(20);

}  // namespace

// Returns how long the session waits for others' work to drain. A session that returns from a rest needs the device for
// a moment: it waits no longer than the hardware's slice of the other session.
Duration Policy::State::drain_wait(const Session& session) const {
  return session.rested ? std::min(settings.slice, settings.drain_wait_max) : settings.drain_wait_max;
}

const Session* Policy::State::undrained_for(const Session& session) const {
  const Duration usual = drain_wait(session);
  for (const DeviceIndex index : session.devices) {
    for (const Session* other : devices[index].sessions) {
      if (other == &session || !other->seen.in_flight || other->gate.open) continue;
      // A higher rank submits at once: the hardware bounds its start, whatever is still in flight.
      if (other->rank > session.rank) continue;
      // Work in flight behind a gate that has drained already is not waited for.
      if (other->drained || other->overdue) continue;
      // Beside other tenants, a tenant's sessions start one after the other, so that endless work of one is known
      // before the next starts.
      const bool siblings = other->tenant == session.tenant && beside_others(index, *session.tenant);
      const Duration wait = siblings ? settings.drain_wait_max : usual;
      if (now - other->closed_at < std::min(wait, drain_wait_of(*other))) return other;
    }
  }
  return nullptr;
}

bool Policy::State::stays_open(const Session& session) const {
  if (session.barred_by != nullptr) return false;
  if (all_devices(session, [](const Device& device) { return device.sessions.size() == 1; })) return true;
  if (!session.gate.open || session.candidate) return false;
  return all_devices(session, [&](const Device& device) {
    const auto wanted_by = [&](const Session* other) {
      return other != &session && (other->candidate || other->selected);
    };
    return std::none_of(device.sessions.begin(), device.sessions.end(), wanted_by);
  });
}

bool Policy::State::near_higher(const Session& session) const {
  return std::any_of(session.devices.begin(), session.devices.end(), [&](DeviceIndex index) {
    return std::any_of(devices[index].sessions.begin(), devices[index].sessions.end(), [&](const Session* other) {
      return other->ever_active && other->tenant->policy.service_class < session.tenant->policy.service_class &&
             now - other->active_at < kNear;
    });
  });
}

Duration Policy::State::in_flight_max(const Session& session) const {
  if (near_higher(session)) return settings.in_flight_max_near_higher;
  // An endless kernel with another one queued behind it makes way for a realtime tenant's first request later than one
  // alone does.
  const bool may_meet_realtime = has_realtime_tenant && session.tenant->policy.service_class != ServiceClass::realtime;
  Duration bound = may_meet_realtime ? settings.in_flight_max : Duration::zero();
  for (const DeviceIndex index : session.devices) {
    for (const Session* other : devices[index].sessions) {
      if (other == &session || !other->ever_active) continue;
      const Duration ago = now - other->active_at;
      if (other->rank > session.rank || ago >= kNearEqual) continue;
      // Side by side, a session that waits for the others' slices needs enough queued work for its own slice, or it
      // loses the device again at once.
      bound = std::max(bound, devices[index].regime == Regime::co_run ? settings.slice : settings.in_flight_max);
    }
  }
  return bound;
}

void Policy::State::set_gate(Session& session, Gate gate) {
  const Regime regime = devices[session.devices.front()].regime;
  const bool changes_it = gate != session.gate || regime != session.regime;
  if (gate.open && !session.gate.open) {
    session.opened_at = now;
    session.started = session.seen.in_flight;
    session.started_at = now;
    session.submissions_at_opening = session.seen.submissions;
    if (!session.seen.in_flight) session.progress_at = now;
  } else if (!gate.open && session.gate.open) {
    session.closed_at = now;
    session.drained = !session.seen.in_flight;
    if (session.seen.in_flight && !session.started) {
      session.started = true;
      session.started_at = now;
    }
  }
  if (!Session::counts(session.gate, session.regime) && Session::counts(gate, regime)) session.uncounted = true;
  session.gate = gate;
  session.regime = regime;
  if (changes_it) changes.push_back({session.id, gate, regime});
}

bool Policy::State::held_up(const Session& session) const {
  if (session.seen.in_flight && (!session.gate.open || session.started)) return false;
  if (!session.gate.open) return session.seen.waiting;
  return !session.started && (session.held || session.seen.waiting || session.seen.in_flight);
}

void Policy::State::set_gates() {
  // Gates are closed first: whether a device is drained depends on it.
  for (auto& [id, session] : sessions) {
    if (session->gate.open && !session->selected && !stays_open(*session)) set_gate(*session, Gate{.open = false});
  }
  for (auto& [id, session] : sessions) {
    const bool may_open =
        session->selected ? !session->leased || undrained_for(*session) == nullptr : stays_open(*session);
    const bool open = session->gate.open || may_open;
    set_gate(*session, open ? Gate{.open = true, .in_flight_max = in_flight_max(*session)} : Gate{.open = false});
  }
}

std::optional<Time> Policy::State::next_due() const {
  std::optional<Time> due;
  const auto by = [&](Time time) { due = std::min(due.value_or(Time::max()), std::max(time, now + kDecideAgainMin)); };
  bool contended = false;
  for (const auto& [id, session] : sessions) {
    contended |= !session->gate.open && (session->wants || session->leased);
    // Also with quiet sessions: work may pass an open gate without an event.
    by(now + kSettleEvery);
  }
  for (const Device& device : devices) {
    if (device.regime != Regime::free) by(regimes_at);
  }
  if (!contended) return due;
  // A holder that has work now cannot have been quiet for long enough before this time.
  by(now + settings.linger);
  for (const auto& [id, session] : sessions) {
    if (session->seen.in_flight && !session->gate.open && !session->drained) {
      by(session->closed_at + std::min(drain_wait_of(*session), now - session->closed_at < settings.slice
                                                                    ? settings.slice
                                                                    : settings.drain_wait_max));
    }
    if (session->seen.in_flight && session->gate.open) by(session->stands_since() + settings.drain_wait_max);
    if (session->seen.waiting && session->ignored_until > now) by(session->ignored_until);
    if (!session->gate.open || (!session->leased && !co_runs(*session))) continue;
    if (session->leased && pauses_are_long(*session) && lower_wants(*session)) by(now + kPollForPause);
    if (session->candidate && !session->wants) by(session->quiet_since() + linger_of(*session));
    for (const DeviceIndex index : session->devices) {
      if (session->leased && devices[index].holder_contended) by(now + session->tenant->devices[index].deficit);
    }
  }
  return due;
}

}  // namespace gpuwire::scheduler
