#include "test/scheduler/simulation/world.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gpuwire::scheduler::test {
namespace {

// However long the kernels are, a host that queues ahead has one behind the one that runs.
constexpr int64_t kUnboundedDepthMin = 2;
// A queue this deep hides the time between a kernel's end and the next submission.
constexpr int64_t kDeepEnough = 2;

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

World::World(uint64_t seed, size_t devices, Policy::Settings settings, Latencies latencies)
    : choices_(seed),
      latencies_(latencies),
      settings_(settings),
      policy_(settings),
      hardware_(devices),
      device_posted_(devices, Time::max()),
      owner_(devices) {}

void World::tenant(TenantId tenant, const TenantPolicy& policy) {
  policy_.set_tenant(tenant, policy);
  classes_[tenant] = policy.service_class;
}

SessionId World::add(const SessionSpec& spec) {
  SessionState session;
  session.spec = spec;
  session.id = SessionId(sessions_.size() + 1);
  sessions_.push_back(session);
  const auto index = static_cast<uint32_t>(sessions_.size() - 1);
  post(std::max(now_, spec.arrives), What::arrive, index);
  if (spec.ends != Time::max()) post(spec.ends, What::die, index);
  return session.id;
}

void World::jump_clock(Time at, Duration by) {
  jumps_.push_back(by);
  post(at, What::jump, static_cast<uint32_t>(jumps_.size() - 1));
}

void World::post(Time at, What what, uint32_t index, uint64_t generation) {
  events_.push({std::max(at, now_), ++order_, what, index, generation});
}

void World::run(Time until) {
  while (wrong_.empty() && !events_.empty() && events_.top().at <= until) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.at;
    handle(event);
  }
  now_ = std::max(now_, until);
  for (DeviceIndex device = 0; device < hardware_.size(); ++device) advance_device(device);
}

void World::handle(const Event& event) {
  switch (event.what) {
    case What::device:
      if (device_posted_[event.index] != event.at) return;
      device_posted_[event.index] = Time::max();
      advance_device(event.index);
      post_device(event.index);
      return;
    case What::decide:
      if (event.generation == decide_generation_) decide();
      return;
    case What::jump: clock_offset_ += jumps_[event.index]; return;
    default: break;
  }
  SessionState& session = sessions_[event.index];
  switch (event.what) {
    case What::arrive:
      session.alive = session.known = true;
      session.quiet_begun = now_;
      session.gate_open = session.passes = !scheduling;
      for (const DeviceIndex device : session.spec.devices) {
        session.first_context.push_back(hardware_[device].add_context());
        owner_[device].push_back({event.index, 0});
        for (unsigned i = 1; i < session.spec.workload.contexts; ++i) {
          hardware_[device].add_context();
          owner_[device].push_back({event.index, 0});
        }
      }
      policy_.add_session(session.id, session.spec.tenant, session.spec.devices, now_ + clock_offset_);
      wake_scheduler();
      if (session.spec.workload.launches != 0) begin_iteration(session);
      else begin_burst(session, true);
      break;
    case What::submit:
      if (session.alive) begin_burst(session, event.generation == 1);
      break;
    case What::launch:
      if (session.alive) launch(session);
      break;
    case What::synced:
      if (session.alive) synced(session);
      break;
    case What::gate_seen:
      if (!session.alive || event.generation != session.gate_generation) break;
      session.passes = true;
      if (!session.waiting) break;
      if (session.spec.workload.launches != 0) launch(session);
      else submit(session);
      break;
    case What::drain_seen:
      if (session.alive && event.generation == session.drain_generation) drain_seen(session);
      break;
    case What::die:
      if (session.alive) die(session);
      break;
    case What::death_seen:
      session.known = false;
      policy_.remove_session(session.id, now_ + clock_offset_);
      wake_scheduler();
      break;
    default: break;
  }
}

void World::advance_device(DeviceIndex device) {
  happened_.clear();
  hardware_[device].advance(now_, happened_);
  for (const HardwareEvent& event : happened_) {
    SessionState& session = sessions_[owner_[device][event.context].first];
    if (!session.alive) continue;
    if (event.what == HardwareEvent::began) {
      if (session.first_start == Time{}) session.first_start = event.at;
      if (session.in_flight && !session.begun) {
        session.begun = true;
        session.burst_begun = event.at;
      }
    } else if (session.contexts_busy > 0 && --session.contexts_busy == 0) {
      emptied(session, event.at);
    }
  }
}

void World::post_device(DeviceIndex device) {
  const std::optional<Time> next = hardware_[device].next_event();
  if (!next || *next >= device_posted_[device]) return;
  device_posted_[device] = std::max(*next, now_);
  post(*next, What::device, device);
}

void World::begin_burst(SessionState& session, bool new_request) {
  if (new_request) {
    session.bursts_left = session.spec.workload.bursts_per_request;
    session.request_begun = now_;
  }
  session.backlog = session.spec.workload.burst;
  session.quiet += now_ - session.quiet_begun;
  if (session.passes) {
    session.waiting_since = now_;
    submit(session);
  } else {
    wait_at_gate(session);
  }
}

void World::wait_at_gate(SessionState& session) {
  session.waiting = true;
  session.waiting_since = now_;
  wake_scheduler();
}

// --- programs whose host launches kernel by kernel -----------------------------------------------------------

void World::begin_iteration(SessionState& session) {
  session.launches_left = session.spec.workload.launches;
  session.request_begun = now_;
  post(now_ + session.spec.workload.copies, What::launch, static_cast<uint32_t>(&session - sessions_.data()));
}

void World::launch(SessionState& session) {
  const Workload& load = session.spec.workload;
  const auto index = static_cast<uint32_t>(&session - sessions_.data());
  if (!session.passes) {
    if (!session.in_flight) session.quiet += now_ - session.quiet_begun;
    return wait_at_gate(session);
  }
  const DeviceIndex device = session.spec.devices[0];
  const unsigned context = session.first_context[0];
  advance_device(device);
  if (session.waiting) {
    session.longest_wait = std::max(session.longest_wait, now_ - session.waiting_since);
    session.waiting = false;
    session.quiet_begun = now_;
  }
  const Duration ready = hardware_[device].ready(context), bound = session.gate.in_flight_max;
  const Duration kernel = session.launches_left <= load.others ? load.other_kernel : load.kernel;
  if (bound != Duration::zero() && ready > Duration::zero() && ready + kernel > bound)
    return post(now_ + std::clamp<Duration>(ready + kernel - bound, std::chrono::microseconds(5),
                                            std::chrono::microseconds(50)),
                What::launch, index);
  if (!session.in_flight) session.quiet += now_ - session.quiet_begun;
  gave_work(session);
  session.contexts_busy = 1;
  hardware_[device].give(context, kernel, 1, now_);
  post_device(device);
  if (--session.launches_left > 0) return post(now_ + load.launch_every, What::launch, index);
  session.syncs = true;
}

void World::synced(SessionState& session) {
  ++session.iterations;
  session.request_seconds.push_back(seconds(now_ - session.request_begun));
  begin_iteration(session);
}

int64_t World::depth(const SessionState& session) const {
  const Duration bound = session.gate.in_flight_max;
  const Workload& load = session.spec.workload;
  return bound == Duration::zero() ? std::max(kUnboundedDepthMin, load.ahead / load.kernel)
                                   : std::max<int64_t>(1, bound / load.kernel);
}

void World::gave_work(SessionState& session) {
  if (!session.in_flight) {
    session.in_flight = true;
    session.begun = false;
    session.bursts += session.spec.workload.bursts_seen;
  } else if (session.begun && session.first_start == Time{}) {
    session.first_start = now_;
  }
  ++session.submissions;
  ++session.drain_generation;
}

// While the gate is open the worker keeps the queue full, so all of the backlog counts as ready; close() takes back
// what would not have been queued.
void World::submit(SessionState& session) {
  const Workload& load = session.spec.workload;
  session.longest_wait = std::max(session.longest_wait, now_ - session.waiting_since);
  session.waiting = false;
  gave_work(session);
  const double stretch = depth(session) < kDeepEnough ? 1 + seconds(load.submission_gap) / seconds(load.kernel) : 1;
  const Duration work = session.backlog >= HardwareDevice::kEndless
                            ? session.backlog
                            : Duration(static_cast<int64_t>(static_cast<double>(session.backlog.count()) * stretch));
  session.backlog = Duration::zero();
  session.contexts_busy = 0;
  session.executed_at_burst.clear();
  for (size_t i = 0; i < session.spec.devices.size(); ++i) {
    const DeviceIndex device = session.spec.devices[i];
    advance_device(device);
    // The gate lets a kernel that is longer than its bound in alone: behind one that has begun in any context.
    const bool alone = session.gate.in_flight_max != Duration::zero() && load.kernel > session.gate.in_flight_max;
    unsigned chosen = 0;
    for (unsigned c = 0; c < load.contexts; ++c) {
      if (hardware_[device].ready(session.first_context[i] + c) > Duration::zero()) chosen = c;
    }
    for (unsigned c = 0; c < load.contexts; ++c) {
      const unsigned context = session.first_context[i] + c;
      session.executed_at_burst.push_back(hardware_[device].executed(context));
      if (alone && c != chosen) continue;
      hardware_[device].give(context, work, stretch, now_);
      if (hardware_[device].ready(context) > Duration::zero()) ++session.contexts_busy;
    }
    post_device(device);
  }
}

void World::close(SessionState& session) {
  ++session.gate_generation;
  session.gate_open = session.passes = false;
  session.closed_at = now_;
  // What stands at the gate has not come through it in the time that it was open: nothing was added to what is in
  // flight.
  if (!session.in_flight || session.waiting || session.spec.workload.launches != 0) return;
  const Workload& load = session.spec.workload;
  Duration left{};
  const int64_t deep = depth(session);
  const Duration tail = uncounted_left(session) / load.contexts;
  for (size_t i = 0; i < session.spec.devices.size(); ++i) {
    const DeviceIndex device = session.spec.devices[i];
    advance_device(device);
    int64_t rest = deep;  // the bound is the session's, over all its contexts
    // The context that runs comes first: a kernel that goes alone is the one that has begun.
    unsigned running = 0;
    for (unsigned c = 0; c < load.contexts; ++c) {
      if (hardware_[device].runs(session.first_context[i] + c)) running = c;
    }
    for (unsigned n = 0; n < load.contexts; ++n) {
      const unsigned c = (running + n) % load.contexts;
      const unsigned context = session.first_context[i] + c;
      const Duration ready = hardware_[device].ready(context);
      if (ready <= Duration::zero()) continue;
      const Duration done = hardware_[device].executed(context) - session.executed_at_burst[i * load.contexts + c];
      if (rest <= 0 && tail == Duration::zero() && session.contexts_busy > 1 && hardware_[device].drop(context)) {
        --session.contexts_busy;
        continue;
      }
      const int64_t kernels = std::min(rest, std::max<int64_t>(1, deep / load.contexts));
      rest -= kernels;
      const Duration queued =
          std::max(tail, kernels > 0 ? load.kernel * kernels - done % load.kernel : Duration::zero());
      hardware_[device].keep(context, std::min(ready, queued),
                             kernels == 1 ? std::optional(now_ - done % load.kernel) : std::nullopt);
      left = std::max(left, ready >= HardwareDevice::kEndless ? ready : ready - std::min(ready, queued));
    }
    post_device(device);
  }
  session.backlog = left;
  if (left > Duration::zero()) {
    session.waiting = true;
    session.waiting_since = now_;
  }
}

void World::emptied(SessionState& session, Time at) {
  if (!session.in_flight) return;
  if (!session.gate_open) session.drain_seconds.push_back(seconds(at - session.closed_at));
  const auto index = static_cast<uint32_t>(&session - sessions_.data());
  post(at + between(latencies_.notice_min, latencies_.notice_max), What::drain_seen, index, ++session.drain_generation);
  if (!std::exchange(session.syncs, false)) return;
  const Workload& load = session.spec.workload;
  const bool late = load.hiccup_probability > 0 && choices_.chance(load.hiccup_probability);
  post(at + load.rest_min + (late ? load.hiccup : Duration::zero()), What::synced, index);
}

void World::drain_seen(SessionState& session) {
  session.busy = session.busy_wall(now_);
  session.in_flight = session.begun = false;
  session.last_end = now_ + clock_offset_;
  if (!session.gate_open) wake_scheduler();
  if (!session.gate_open && session.spec.workload.unasked > Duration::zero() && choices_.chance(0.5))
    return pass_unasked(session);
  if (session.waiting) return;  // the rest of the burst stands at the gate
  session.quiet_begun = now_;
  const Workload& load = session.spec.workload;
  if (load.launches != 0) return;  // the host goes on by itself
  const auto index = static_cast<uint32_t>(&session - sessions_.data());
  if (--session.bursts_left > 0) {
    post(now_ + load.gap, What::submit, index, 0);
  } else {
    session.request_seconds.push_back(seconds(now_ - session.request_begun));
    post(now_ + between(load.rest_min, std::max(load.rest_min, load.rest_max)), What::submit, index, 1);
  }
}

void World::pass_unasked(SessionState& session) {
  const DeviceIndex device = session.spec.devices[0];
  session.in_flight = true;
  session.begun = false;
  ++session.bursts;
  ++session.submissions;
  session.contexts_busy = 1;
  if (!session.waiting) session.quiet_begun = now_;
  advance_device(device);
  hardware_[device].give(session.first_context[0], session.spec.workload.unasked, 1, now_);
  post_device(device);
}

void World::die(SessionState& session) {
  print("dies", session);
  session.alive = false;
  for (size_t i = 0; i < session.spec.devices.size(); ++i) {
    const DeviceIndex device = session.spec.devices[i];
    advance_device(device);
    for (unsigned c = 0; c < session.spec.workload.contexts; ++c)
      hardware_[device].remove_context(session.first_context[i] + c, now_);
    post_device(device);
  }
  post(now_ + wake(), What::death_seen, static_cast<uint32_t>(&session - sessions_.data()));
}

Duration World::wake() {
  if (latencies_.spike_probability > 0 && choices_.chance(latencies_.spike_probability)) return latencies_.spike;
  return between(latencies_.wake_min, latencies_.wake_max);
}

void World::wake_scheduler() {
  if (!scheduling) return;
  const Time at = now_ + wake();
  if (at >= decide_at_) return;
  decide_at_ = at;
  post(at, What::decide, 0, ++decide_generation_);
}

Observation World::page(const SessionState& session) const {
  Observation seen;
  seen.waiting = session.waiting;
  seen.in_flight = session.in_flight;
  seen.first_start = session.first_start == Time{} ? Time{} : session.first_start + clock_offset_;
  seen.last_end = session.last_end;
  seen.busy = session.busy_wall(now_);
  seen.quiet = session.quiet + (session.waiting || session.in_flight ? Duration::zero() : now_ - session.quiet_begun);
  seen.bursts = session.bursts;
  seen.submissions = session.submissions;
  seen.completions = completions(session);
  return seen;
}

// Seconds of work on its first device that the worker has counted.
double World::progress_seen(const SessionState& session) const {
  if (session.uncounted) return session.progress_counted;
  return std::max(session.progress_counted, progress(session.id) - session.progress_uncounted);
}

// Seconds of work that its host has given to that device.
double World::queued(const SessionState& session) const {
  const Workload& load = session.spec.workload;
  Duration sum{}, done{};
  for (unsigned c = 0; c < load.contexts && !session.first_context.empty(); ++c) {
    const Duration ready = hardware_[session.spec.devices[0]].ready(session.first_context[0] + c);
    sum = std::min(HardwareDevice::kEndless, sum + ready);
  }
  if (load.launches != 0 || session.first_context.empty()) return seconds(sum);
  if (session.executed_at_burst.empty()) return seconds(sum);
  done = hardware_[session.spec.devices[0]].executed(session.first_context[0]) - session.executed_at_burst[0];
  return seconds(std::min(sum, load.kernel * depth(session) - done % load.kernel));
}

// Of what was queued while nobody counted.
Duration World::uncounted_left(const SessionState& session) const {
  if (session.uncounted) return Duration::zero();
  const double left = session.progress_uncounted + session.progress_counted - progress(session.id);
  return Duration(static_cast<int64_t>(1e9 * std::max(0.0, left)));
}

void World::count_from_now(SessionState& session, bool counts) {
  if (counts != session.uncounted) return;
  session.progress_counted = progress_seen(session);
  session.uncounted = !counts;
  if (counts) session.progress_uncounted = progress(session.id) + queued(session) - session.progress_counted;
}

// Kernels, though the model gives a burst in one go; an honest worker sees none done that has not been submitted.
uint64_t World::completions(const SessionState& session) const {
  const Workload& load = session.spec.workload;
  const double done = progress_seen(session), one = seconds(load.kernel);
  if (load.others == 0) return static_cast<uint64_t>(done / one);
  const unsigned usual = load.launches - load.others;
  const double other = seconds(load.other_kernel), iteration = usual * one + load.others * other;
  const double rest = std::fmod(done, iteration);
  const double of_rest = rest < usual * one ? rest / one : usual + (rest - usual * one) / other;
  return static_cast<uint64_t>(done / iteration) * load.launches + static_cast<uint64_t>(of_rest);
}

void World::decide() {
  for (DeviceIndex device = 0; device < hardware_.size(); ++device) advance_device(device);
  const Time clock = now_ + clock_offset_;
  for (const SessionState& session : sessions_) {
    if (!session.alive) continue;
    Observation seen = page(session);
    if (lies) lies(session.id, seen);
    policy_.observe(session.id, seen, clock);
  }
  const auto changes = policy_.decide(clock);
  std::string opening_wrong;
  ++decisions_;
  for (const GateChange& change : changes) {
    SessionState& session = sessions_[static_cast<uint64_t>(change.session) - 1];
    const bool opens = change.gate.open && !session.gate_open;
    count_from_now(session,
                   !change.gate.open || change.gate.in_flight_max != Duration::zero() || change.regime != Regime::free);
    if (!change.gate.open && session.gate_open) close(session);
    session.gate = change.gate;
    if (opens) {
      session.gate_open = true;
      session.first_start = Time{};
      // A worker that waits must be woken; another reads the gate before its next submission.
      const Workload& load = session.spec.workload;
      const Duration late =
          load.late_probability > 0 && choices_.chance(load.late_probability) ? load.late : Duration::zero();
      if (session.waiting)
        post(now_ + wake() + late, What::gate_seen, static_cast<uint32_t>(&session - sessions_.data()),
             ++session.gate_generation);
      else session.passes = true;
    }
    if (opens) {
      ++session.openings;
      if (opening_wrong.empty()) opening_wrong = check_opening(session, change);
    }
    print(change.gate.open ? (opens ? "opened" : "changed") : "closed", session);
  }
  wrong_ = policy_.check();
  if (wrong_.empty() && jumps_.empty()) wrong_ = opening_wrong;
  if (wrong_.empty() && after_decision) wrong_ = after_decision();
  decide_at_ = Time::max();
  ++decide_generation_;
  if (const std::optional<Time> next = policy_.next_decision()) {
    decide_at_ = std::max(now_ + std::chrono::microseconds(5), *next - clock_offset_) +
                 between(Duration::zero(), latencies_.wake_max / 4);
    post(decide_at_, What::decide, 0, decide_generation_);
  }
}

Duration World::executed(SessionId id) const {
  const SessionState& session = sessions_[static_cast<uint64_t>(id) - 1];
  Duration sum{};
  for (unsigned c = 0; c < session.spec.workload.contexts && !session.first_context.empty(); ++c)
    sum += hardware_[session.spec.devices[0]].executed(session.first_context[0] + c);
  return sum;
}

// A lease begins when its equals have drained, or have had their time for that.
std::string World::check_opening(const SessionState& opened, const GateChange& change) const {
  if (change.regime != Regime::lease) return {};
  for (const SessionState& other : sessions_) {
    if (&other == &opened || !other.alive || !other.in_flight || other.gate_open) continue;
    if (now_ - other.closed_at >=
        std::min(policy_.account(opened.id).drain_wait_max, policy_.account(other.id).drain_wait))
      continue;
    if (class_of(other) != class_of(opened)) continue;
    for (const DeviceIndex device : opened.spec.devices) {
      if (std::find(other.spec.devices.begin(), other.spec.devices.end(), device) != other.spec.devices.end())
        return "a lease begins before its device has drained";
    }
  }
  return {};
}

double World::progress(SessionId id) const {
  const SessionState& session = sessions_[static_cast<uint64_t>(id) - 1];
  double sum = 0;
  for (unsigned c = 0; c < session.spec.workload.contexts && !session.first_context.empty(); ++c)
    sum += hardware_[session.spec.devices[0]].progress(session.first_context[0] + c);
  return sum;
}

void World::print_sessions() const {
  constexpr const char* kRegimes[] = {"free", "co-run", "lease"};
  for (const SessionState& session : sessions_) {
    const SessionAccount account = policy_.account(session.id);
    std::printf("session %llu (tenant %u): %s, %s%s%s%s, charged %.3f ms, credit %.3f ms\n",
                static_cast<unsigned long long>(session.id), static_cast<unsigned>(session.spec.tenant),
                kRegimes[static_cast<unsigned>(account.regime)], session.gate_open ? "open" : "closed",
                account.holds_lease ? ", holds the lease" : "", session.waiting ? ", waiting" : "",
                session.in_flight ? ", in flight" : "", seconds(account.gpu_time) * 1e3,
                seconds(account.deficit) * 1e3);
  }
}

void World::print(const char* what, const SessionState& session) const {
  if (!verbose) return;
  std::printf("%12.6f ms  session %llu (tenant %u) %s%s%s\n", seconds(now_ - std::chrono::seconds(1)) * 1e3,
              static_cast<unsigned long long>(session.id), static_cast<unsigned>(session.spec.tenant), what,
              session.in_flight ? ", in flight" : "", session.waiting ? ", waiting" : "");
}

}  // namespace gpuwire::scheduler::test
