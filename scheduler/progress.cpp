// Handles sessions that delay others: endless work, and unused turns.
#include <algorithm>
#include <tuple>

#include "scheduler/policy_state.hpp"

namespace gpuwire::scheduler {
namespace {

// The wait doubles once per this interval without hanging work, however often the tenant's work ends in time: a tenant
// whose work alternately ends and hangs delays others for at most a thirtieth of their time.
constexpr Duration kDrainWaitGrows = std::chrono::seconds(1);
// A session that does not use its turn is passed over for half a turn, twice as long each time up to this.
constexpr Duration kIgnoredMax = std::chrono::milliseconds(100);

}  // namespace

// Whether the session has work in flight that makes no progress: a host function that waits for the client, pages in
// transfer, an executor blocked in a driver call, an endless kernel. From then on lower ranks run beside it.
bool Policy::State::stalled(const Session& session) const {
  return session.seen.in_flight && now - session.stands_since() >= settings.drain_wait_max;
}

// Returns how long others wait for the session's work to drain. It belongs to the tenant and the device, not to the
// session: programs that come one after the other get no longer waits than one that stays.
Duration Policy::State::drain_wait_of(const Session& session) const {
  Duration wait = settings.drain_wait_max;
  for (const DeviceIndex index : session.devices) wait = std::min(wait, session.tenant->devices[index].drain_wait);
  return wait;
}

void Policy::State::shorten_drain_wait(const Session& session, Duration by) {
  for (const DeviceIndex index : session.devices) {
    TenantOnDevice& there = share(*session.tenant, index);
    there.drain_wait = std::max(there.drain_wait - by, std::min(kMoment, settings.drain_wait_max));
    there.drain_wait_grew_at = now;
  }
}

void Policy::State::restore_drain_wait(const Session& session) {
  for (const DeviceIndex index : session.devices) {
    TenantOnDevice& there = share(*session.tenant, index);
    for (; there.drain_wait < settings.drain_wait_max && now - there.drain_wait_grew_at >= kDrainWaitGrows;
         there.drain_wait_grew_at += kDrainWaitGrows)
      there.drain_wait = std::min(2 * there.drain_wait, settings.drain_wait_max);
  }
}

void Policy::State::watch_progress() {
  for (auto& [id, session] : sessions) {
    const bool in_flight = session->seen.in_flight, closed = !session->gate.open;
    const bool draining = closed && !session->drained;
    const Duration waited = now - session->closed_at;
    const bool hangs = closed ? draining && waited >= settings.drain_wait_max : stalled(*session);
    if (hangs && !session->kept_waiting) {
      session->kept_waiting = true;
      shorten_drain_wait(*session, settings.drain_wait_max);
    }
    if (!session->overdue && in_flight && (hangs || (draining && waited >= drain_wait_of(*session)))) {
      session->overdue = true;
      session->overdue_at = now;
    }
    if (in_flight) continue;
    // Work that drains before drain_wait_max, even without being waited for, is long but does not hang.
    if (draining && !hangs) restore_drain_wait(*session);
    session->overdue = session->kept_waiting = false;
    session->drained = session->drained || closed;
  }
}

// Whether other tenants may want the device. A realtime tenant may come at any moment, also for the first time, and
// admitted work cannot be withdrawn.
bool Policy::State::beside_others(DeviceIndex index, const Tenant& tenant) const {
  if (has_realtime_tenant && tenant.policy.service_class != ServiceClass::realtime) return true;
  const Device& device = devices[index];
  const std::optional<Time>& last = device.active == tenant.id ? device.others_active_at : device.active_at;
  return last && now - *last < kNear;
}

// The hardware gives every context with work a slice. So a tenant with endless work gets only one context beside other
// tenants, however many sessions it has. The choice of its session is made once, since work in flight may wait for more
// of the same session.
void Policy::State::bar_siblings() {
  has_realtime_tenant = std::any_of(tenants.begin(), tenants.end(), [](const auto& entry) {
    return entry.second->policy.service_class == ServiceClass::realtime;
  });
  for (DeviceIndex index = 0; index < devices.size(); ++index) {
    Device& device = devices[index];
    for (Tenant* tenant : device.ring) share(*tenant, index).overdue = nullptr;
    for (const Session* session : device.sessions) {
      if (!session->overdue || !beside_others(index, *session->tenant)) continue;
      const Session*& first = share(*session->tenant, index).overdue;
      if (first == nullptr || std::tie(session->overdue_at, session->id) < std::tie(first->overdue_at, first->id))
        first = session;
    }
  }
  for (auto& [id, session] : sessions) {
    session->barred_by = nullptr;
    for (const DeviceIndex index : session->devices) {
      const Session* first = share(*session->tenant, index).overdue;
      if (first != nullptr && first != session.get()) session->barred_by = first;
    }
  }
}

// The session may only be late: it waits at its gate and is let in at its next turn.
void Policy::State::note_no_show(Session& session) {
  if (now < session.ignored_until) return;
  const bool came = session.seen.submissions != session.ignored_submissions;
  session.ignored_submissions = session.seen.submissions;
  const Duration least = settings.turn_min / 2;
  session.ignored_for = came ? least : std::clamp(2 * session.ignored_for, least, kIgnoredMax);
  session.ignored_until = now + session.ignored_for;
}

}  // namespace gpuwire::scheduler
