#include "scheduler/policy.hpp"

#include <algorithm>
#include <utility>

#include "scheduler/policy_state.hpp"

namespace gpuwire::scheduler {

Policy::Policy(Settings settings) : state_(std::make_unique<State>(settings)) {}
Policy::~Policy() = default;

Device& Policy::State::device_at(DeviceIndex index) {
  if (index >= devices.size()) {
    devices.resize(index + 1);
    for (Device& device : devices) device.batch_floor.set(settings.batch_floor, settings.turn_min / 2);
    for (auto& [id, tenant] : tenants) configure(*tenant);
  }
  return devices[index];
}

void Policy::set_tenant(TenantId tenant, const TenantPolicy& policy) {
  State& state = *state_;
  std::unique_ptr<Tenant>& entry = state.tenants[tenant];
  if (entry == nullptr) {
    entry = std::make_unique<Tenant>();
    entry->id = tenant;
  }
  entry->policy = policy;
  if (!(entry->policy.weight > 0)) entry->policy.weight = 1;
  state.configure(*entry);
}

void Policy::remove_tenant(TenantId tenant) {
  const auto found = state_->tenants.find(tenant);
  if (found != state_->tenants.end() && found->second->sessions == 0) state_->tenants.erase(found);
}

void Policy::add_session(SessionId id, TenantId tenant, std::span<const DeviceIndex> devices, Time now) {
  State& state = *state_;
  state.tick(now);
  if (!state.tenants.contains(tenant)) set_tenant(tenant, TenantPolicy{});
  auto session = std::make_unique<Session>();
  session->id = id;
  session->tenant = state.tenants[tenant].get();
  ++session->tenant->sessions;
  session->devices.assign(devices.begin(), devices.end());
  std::sort(session->devices.begin(), session->devices.end());
  session->devices.erase(std::unique(session->devices.begin(), session->devices.end()), session->devices.end());
  session->linger = state.settings.linger;
  session->progress_at = state.now;
  session->seen.last_end = session->opened_at = session->closed_at = state.now;
  for (const DeviceIndex index : session->devices) {
    Device& device = state.device_at(index);
    if (!device.known) {
      device.known = true;
      device.time.begin(state.now);
    }
    device.sessions.push_back(session.get());
    if (std::find(device.ring.begin(), device.ring.end(), session->tenant) == device.ring.end())
      device.ring.push_back(session->tenant);
  }
  state.configure(*session->tenant);
  if (state.sessions.empty()) state.budgets_at = state.now;
  state.sessions[id] = std::move(session);
}

Duration Policy::remove_session(SessionId id, Time now) {
  State& state = *state_;
  const auto found = state.sessions.find(id);
  if (found == state.sessions.end()) return {};
  state.tick(now);
  Session& session = *found->second;
  // The session ends while others wait for its drain: the tenant's next session does not start that wait again.
  if (!session.gate.open && !session.drained && !session.overdue)
    state.shorten_drain_wait(session, state.now - session.closed_at);
  state.end_lease(session);
  std::erase_if(state.claims, [&](const LeaseClaim& claim) { return claim.session == &session; });
  for (auto& [other_id, other] : state.sessions) {
    if (other->barred_by == &session) other->barred_by = nullptr;
  }
  for (const DeviceIndex index : session.devices) {
    Device& device = state.devices[index];
    // Unsettled time waits for a session's first start; this session's part of it is known only while the session
    // exists.
    if (device.regime == Regime::lease) state.settle_leases(index, true);
    std::erase(device.sessions, &session);
    const auto of_tenant = [&](const Session* other) { return other->tenant == session.tenant; };
    if (std::any_of(device.sessions.begin(), device.sessions.end(), of_tenant)) continue;
    std::erase(device.ring, session.tenant);
    for (Tenant*& current : device.current) {
      if (current == session.tenant) current = nullptr;
    }
    state.share(*session.tenant, index).slept = true;
  }
  --session.tenant->sessions;
  const Duration charged = session.gpu_time;
  state.sessions.erase(found);
  return charged;
}

void Policy::observe(SessionId id, const Observation& seen, Time now) {
  State& state = *state_;
  const auto found = state.sessions.find(id);
  if (found == state.sessions.end()) return;
  Session& session = *found->second;
  const Time at = state.clock.advance(now, state.due);
  Observation own = seen;
  const Time before = session.seen.last_end;
  own.last_end =
      seen.last_end == Time{} ? before : std::clamp(state.clock.inside(seen.last_end), before, std::max(at, before));
  own.first_start = seen.first_start == Time{} ? Time{} : std::min(state.clock.inside(seen.first_start), at);
  own.busy = std::max(own.busy, session.seen.busy);
  own.stuck_since =
      !seen.in_flight || seen.stuck_since == Time{} ? Time{} : std::min(state.clock.inside(seen.stuck_since), at);
  if (own.completions != session.seen.completions || !session.seen.in_flight) session.progress_at = at;
  // Work ends in order: a counted completion follows all uncounted work.
  if (session.uncounted && (!own.in_flight || own.completions != session.seen.completions)) {
    session.uncounted = false;
    state.news = true;
  }
  if (own.submissions != session.seen.submissions) {
    if (!state.active(session)) state.news = true;
    state.note_active(session, at);
  }
  state.note_pause(session, own);
  session.seen = own;
  if (!session.gate.open || session.started) {
    // The work passed just before the gate closed.
    if (!session.started && own.in_flight) {
      session.started = true;
      session.started_at = at;
    }
    return;
  }
  if (own.first_start >= session.opened_at && own.first_start != Time{}) {
    session.started = true;
    session.started_at = own.first_start;
  } else if (!own.in_flight && own.last_end > session.opened_at) {
    session.started = true;
    session.started_at = session.opened_at;
  }
}

std::span<const GateChange> Policy::decide(Time now) {
  State& state = *state_;
  state.changes.clear();
  state.tick(now);
  state.settle();
  state.watch_progress();
  state.bar_siblings();
  state.update_wants();
  state.update_ranks();
  state.choose_regimes();
  state.select();
  state.set_gates();
  for (auto& [id, session] : state.sessions) session->held = state.held_up(*session);
  state.due = state.next_due();
  return state.changes;
}

void Policy::settle(Time now) {
  state_->tick(now);
  state_->settle();
}

std::optional<Time> Policy::next_decision() const {
  if (!state_->due) return std::nullopt;
  return state_->clock.outside(*state_->due);
}

SessionAccount Policy::account(SessionId id) const {
  SessionAccount account;
  const auto found = state_->sessions.find(id);
  if (found == state_->sessions.end()) return account;
  const Session& session = *found->second;
  account.regime = session.regime;
  account.holds_lease = session.leased && session.gate.open;
  account.leases = session.leases;
  account.gpu_time = session.gpu_time;
  account.deficit = session.tenant->devices[session.devices.front()].deficit;
  account.drain_wait = session.drained || session.overdue ? Duration{} : state_->drain_wait_of(session);
  account.drain_wait_max = state_->drain_wait(session);
  state_->explain_hold(session, account);
  return account;
}

Duration Policy::gpu_time(SessionId session) const {
  const auto found = state_->sessions.find(session);
  return found == state_->sessions.end() ? Duration{} : found->second->gpu_time;
}

Duration Policy::gpu_time(TenantId tenant, DeviceIndex device) const {
  const auto found = state_->tenants.find(tenant);
  return found == state_->tenants.end() || device >= found->second->devices.size()
             ? Duration{}
             : found->second->devices[device].gpu_time;
}

Duration Policy::granted(TenantId tenant, DeviceIndex device) const {
  const auto found = state_->tenants.find(tenant);
  return found == state_->tenants.end() || device >= found->second->devices.size()
             ? Duration{}
             : found->second->devices[device].granted;
}

const DeviceTime& Policy::State::time_of(DeviceIndex device) const {
  static const DeviceTime kNone;
  return device < devices.size() ? devices[device].time : kNone;
}

Duration Policy::system_time(DeviceIndex device) const { return state_->time_of(device).system(); }
Duration Policy::idle_time(DeviceIndex device) const { return state_->time_of(device).idle(); }
Duration Policy::settled_time(DeviceIndex device) const { return state_->time_of(device).settled_time(); }

CoRunMetrics Policy::co_run(DeviceIndex device) const {
  return device < state_->devices.size() ? state_->devices[device].co_run.figures() : CoRunMetrics{};
}

void Policy::State::tick(Time caller_now) {
  const Time before = std::exchange(now, clock.advance(caller_now, due));
  for (auto& [id, session] : sessions) {
    if (session->gate.open) session->open += now - before;
    if (!session->held) session->own += now - before;
    else if (session->started && session->started_at > before) session->own += now - std::min(session->started_at, now);
  }
}

void Policy::State::configure(Tenant& tenant) {
  tenant.devices.resize(devices.size());
  for (TenantOnDevice& there : tenant.devices) {
    const auto window = static_cast<double>(settings.cap_window.count());
    const Duration cap(static_cast<int64_t>(tenant.policy.share_max * window));
    const bool fresh = there.cap.full() == Duration::zero();
    there.cap.set(tenant.policy.share_max, cap);
    if (fresh) there.cap.fill();
    if (fresh) there.drain_wait = settings.drain_wait_max;
    there.floor.set(tenant.policy.share_min, tenant.policy.share_min > 0 ? settings.turn_min : Duration::zero());
  }
}

std::string Policy::check() const { return state_->check(); }

}  // namespace gpuwire::scheduler
