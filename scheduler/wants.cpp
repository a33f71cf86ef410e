// Determines which sessions want their devices now.
#include <algorithm>

#include "scheduler/policy_state.hpp"

namespace gpuwire::scheduler {
namespace {

// Sessions count as running side by side if each wanted the device within this time.
constexpr Duration kActiveFor = std::chrono::milliseconds(50);
// After so many pauses in a row that outlast the gate's lingering, the next one is expected to do so, too.
constexpr unsigned kLongPausesMin = 8;

}  // namespace

bool Policy::State::active(const Session& session) const {
  return session.ever_active && now - session.active_at < kActiveFor;
}

void Policy::State::note_active(Session& session, Time at) {
  session.ever_active = true;
  session.active_at = at;
  for (const DeviceIndex index : session.devices) {
    Device& device = devices[index];
    if (device.active != session.tenant->id) device.others_active_at = device.active_at;
    device.active = session.tenant->id;
    device.active_at = at;
  }
}

// After several bursts since the last observation, the pauses between them count as short.
void Policy::State::note_pause(Session& session, const Observation& seen) const {
  const uint64_t bursts = seen.bursts - std::min(seen.bursts, session.seen.bursts);
  if (bursts == 0) return;
  const bool is_long = bursts == 1 && seen.quiet - session.quiet_at_burst >= settings.linger;
  session.long_pauses = is_long ? std::min(session.long_pauses + 1, kLongPausesMin) : 0;
  session.quiet_at_burst = seen.quiet;
}

bool Policy::State::pauses_are_long(const Session& session) const { return session.long_pauses >= kLongPausesMin; }

bool Policy::State::lower_wants(const Session& session) const {
  return std::any_of(session.devices.begin(), session.devices.end(), [&](DeviceIndex index) {
    const auto& all = devices[index].sessions;
    return std::any_of(all.begin(), all.end(),
                       [&](const Session* other) { return other->wants && other->rank > session.rank; });
  });
}

// Returns how long the session keeps its quiet lease. Beside sessions of equal rank, which linger in their turns as
// well, it keeps it for its whole `linger`. A lower class gets idle time sooner, and at once if the session's pauses
// outlast the lingering anyway.
Duration Policy::State::linger_of(const Session& session) const {
  if (!lower_wants(session)) return session.linger;
  return pauses_are_long(session) ? Duration::zero() : std::min(session.linger, settings.linger);
}

bool Policy::State::lingers(const Session& session) const {
  const bool holds = session.leased || (session.gate.open && co_runs(session));
  return holds && !session.wants && now < session.quiet_since() + linger_of(session);
}

// The session wants the device again after its lease has lapsed.
void Policy::State::woke(Session& session) {
  session.lapsed = false;
  session.rested = true;
  const Duration gap = now - session.quiet_since();
  session.return_gap =
      session.return_gap == Duration::max() ? gap : (3 * session.return_gap + std::min(gap, 4 * kMoment)) / 4;
  session.linger =
      session.return_gap > kMoment ? settings.linger : std::max(session.return_gap * 3 / 2, settings.linger);
  claims.push_back({&session, ++order, true});
}

bool Policy::State::wants(Session& session) {
  const Observation& seen = session.seen;
  if (session.barred_by != nullptr) return false;
  if (session.gate.open && seen.waiting && seen.submissions == session.submissions_at_opening &&
      now > session.opened_at + kStartMax) {
    note_no_show(session);
    return false;
  }
  if (seen.waiting) return now >= session.ignored_until;
  // Work in flight behind a closed gate drains or is endless: it takes no lease.
  return seen.in_flight && session.gate.open && !stalled(session);
}

void Policy::State::update_wants() {
  for (auto& [id, session] : sessions) {
    session->wants = wants(*session);
    const bool works = session->wants || session->seen.in_flight;
    if (works && !active(*session)) news = true;
    if (session->wants && session->lapsed) woke(*session);
    if (works) note_active(*session, now);
    session->selected = false;
  }
  for (auto& [id, session] : sessions) session->candidate = session->wants || lingers(*session);
  for (Device& device : devices) {
    const auto index = static_cast<DeviceIndex>(&device - devices.data());
    for (Tenant* tenant : device.ring) share(*tenant, index).awake = false;
    for (const Session* session : device.sessions) share(*session->tenant, index).awake |= session->candidate;
    for (Tenant* tenant : device.ring) share(*tenant, index).slept |= !share(*tenant, index).awake;
  }
}

}  // namespace gpuwire::scheduler
