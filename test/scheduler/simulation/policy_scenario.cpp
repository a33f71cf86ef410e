// Random tenants, sessions, deaths and clock leaps around the policy, and what must hold whatever happens.
#include <algorithm>

#include "test/scheduler/simulation/world.hpp"

namespace gpuwire::scheduler::test {
namespace {

using namespace std::chrono_literals;

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }
Duration random_log(Choices& choices, Duration low, Duration high) {
  return Duration(
      static_cast<int64_t>(choices.log_between(static_cast<double>(low.count()), static_cast<double>(high.count()))));
}

// What a scenario is made of, as far as the checks must know.
struct Plan {
  Policy::Settings settings;
  size_t devices = 1;
  Duration length{};
  std::vector<TenantPolicy> tenants;
  std::vector<SessionSpec> sessions;
  std::vector<std::pair<Time, Duration>> jumps;
  double spikes = 0;
  bool one_class = true, dies = false, gangs = false, endless = false, awkward = false;

  Duration turn_max() const { return std::max(settings.turn_min, settings.turn_min_batch); }
  double weight_min() const {
    return std::min_element(tenants.begin(), tenants.end(),
                            [](const TenantPolicy& a, const TenantPolicy& b) { return a.weight < b.weight; })
        ->weight;
  }
  const TenantPolicy& policy_of(const SessionSpec& session) const {
    return tenants[static_cast<uint32_t>(session.tenant) - 1];
  }
  Duration turn_of(const SessionSpec& session) const {
    return Duration(static_cast<int64_t>(seconds(turn_max()) * 1e9 * policy_of(session).weight / weight_min()));
  }
};

Workload random_workload(Choices& choices, Duration turn, bool& endless, bool& awkward) {
  Workload load;
  load.kernel = random_log(choices, 20us, choices.chance(0.3) ? 4 * turn : turn / 4 + 20us);
  if (choices.chance(0.03)) {
    awkward = true;
    load.late_probability = choices.unit();
    load.late = random_log(choices, 1ms, 60ms);
  } else if (choices.chance(0.03)) {
    awkward = true;
    load.unasked = random_log(choices, 20us, 4 * turn);
  }
  const double kind = choices.unit();
  if (kind > 0.9) {  // launches kernel by kernel
    load.kernel = load.burst = random_log(choices, 3us, 200us);
    load.launches = static_cast<unsigned>(choices.between(1, 60));
    load.launch_every = random_log(choices, 3us, 60us);
    load.rest_min = load.rest_max = random_log(choices, 5us, turn);
    if (choices.chance(0.2)) load.copies = random_log(choices, 100us, turn);
    return load;
  }
  if (kind < 0.35) return load;  // never synchronizes
  if (kind < 0.37) {
    load.kernel = 1h;
    endless = true;
    return load;
  }
  if (kind < 0.55) {  // synchronizes after each kernel
    load.kernel = std::max<Duration>(load.kernel, 60us);
    load.burst = load.kernel;
    load.rest_min = load.rest_max = random_log(choices, 20us, 400us);
    return load;
  }
  load.burst = std::max(load.kernel, random_log(choices, 50us, 2 * turn));  // steps, requests, notebooks
  load.rest_min = random_log(choices, 50us, turn);
  load.rest_max = choices.chance(0.5) ? load.rest_min : load.rest_min * 5;
  if (choices.chance(0.3)) {
    load.bursts_per_request = static_cast<unsigned>(choices.between(2, 8));
    load.gap = random_log(choices, 5us, 300us);
  }
  if (choices.chance(0.1)) load.contexts = static_cast<unsigned>(choices.between(2, 6));
  return load;
}

TenantPolicy random_policy(Choices& choices, bool one_class) {
  TenantPolicy policy;
  policy.weight = choices.chance(0.4) ? 1 : choices.log_between(1, 10);
  if (one_class) return policy;
  policy.service_class = static_cast<ServiceClass>(choices.between(0, kServiceClasses - 1));
  if (policy.service_class == ServiceClass::realtime && choices.chance(0.7))
    policy.share_max = 0.2 + 0.7 * choices.unit();
  if (policy.service_class == ServiceClass::scavenger && choices.chance(0.5))
    policy.share_min = 0.02 + 0.2 * choices.unit();
  return policy;
}

// Everything at once, in short scenarios.
void plan_anything(Choices& choices, Plan& plan) {
  const Duration turn = plan.settings.turn_min;
  plan.length = turn * choices.between(6, 24);
  plan.devices = choices.chance(0.7) ? 1 : static_cast<size_t>(choices.between(2, 4));
  plan.one_class = choices.chance(0.5);
  const auto tenants = choices.between(1, 5);
  for (int64_t i = 0; i < tenants; ++i) plan.tenants.push_back(random_policy(choices, plan.one_class));
  const auto sessions = std::max(tenants, choices.between(1, 7));
  for (int64_t i = 0; i < sessions; ++i) {
    SessionSpec spec;
    spec.tenant = TenantId(static_cast<uint32_t>(i < tenants ? i + 1 : choices.between(1, tenants)));
    spec.workload = random_workload(choices, turn, plan.endless, plan.awkward);
    spec.devices = {static_cast<DeviceIndex>(choices.between(0, static_cast<int64_t>(plan.devices) - 1))};
    if (plan.devices > 1 && choices.chance(0.3)) {
      spec.devices.clear();
      for (DeviceIndex device = 0; device < plan.devices; ++device) {
        if (choices.chance(0.6)) spec.devices.push_back(device);
      }
      if (spec.devices.empty()) spec.devices = {0};
    }
    spec.arrives = 1s + (choices.chance(0.7) ? Duration(choices.between(0, turn.count() / 2))
                                             : Duration(choices.between(0, plan.length.count())));
    if (choices.chance(0.1)) {
      spec.ends = spec.arrives + Duration(choices.between(1000, plan.length.count()));
      plan.dies = true;
    }
    plan.sessions.push_back(spec);
  }
  if (choices.chance(0.1))
    plan.jumps.push_back({1s + Duration(choices.between(0, plan.length.count())),
                          random_log(choices, 1us, 1h) * (choices.chance(0.5) ? 1 : -1)});
}

// Tenants that always have work, for many turns: who gets how much, and who waits how long. On several devices some
// want more than one of them.
void plan_saturation(Choices& choices, Plan& plan, bool several_devices) {
  const Duration turn = plan.settings.turn_min;
  plan.devices = several_devices ? static_cast<size_t>(choices.between(2, 3)) : 1;
  const auto tenants = choices.between(2, 4) + (several_devices ? 1 : 0);
  for (int64_t i = 0; i < tenants; ++i) {
    plan.tenants.push_back(random_policy(choices, true));
    if (several_devices) plan.tenants.back().weight = 1;
    SessionSpec spec{.tenant = TenantId(static_cast<uint32_t>(i + 1)),
                     .devices = {static_cast<DeviceIndex>(i % static_cast<int64_t>(plan.devices))}};
    spec.workload.kernel = random_log(choices, 20us, turn / 2);
    if (several_devices && i >= static_cast<int64_t>(plan.devices)) spec.devices = {0, 1};
    spec.arrives = 1s + Duration(choices.between(0, 1000000));
    plan.sessions.push_back(spec);
  }
  Duration round{};
  for (const SessionSpec& spec : plan.sessions) round += plan.turn_of(spec);
  plan.length = round * 6;
}

Plan make_plan(Choices& choices) {
  Plan plan;
  const double kind = choices.unit();
  const Duration turn = random_log(choices, 500us, 8ms);
  plan.settings.turn_min = turn;
  plan.settings.turn_min_batch = choices.chance(0.5) ? turn : 2 * turn;
  plan.settings.drain_wait_max = 8 * turn;
  plan.settings.cap_window = 10 * turn;
  plan.spikes = choices.chance(0.2) ? 0.02 : 0;
  if (kind < 0.8) plan_anything(choices, plan);
  else plan_saturation(choices, plan, kind < 0.9);
  for (SessionSpec& spec : plan.sessions) spec.workload.ahead = random_log(choices, 50us, turn);
  plan.gangs = std::any_of(plan.sessions.begin(), plan.sessions.end(),
                           [](const SessionSpec& spec) { return spec.devices.size() > 1; });
  return plan;
}

// How long a session whose class is the highest may stand at its gate: the turns of the others until its credit is
// positive again, once for each session of its tenant.
Duration wait_max(const Plan& plan, const SessionSpec& session) {
  constexpr Duration kOverhead = 3ms;  // drains, switches, wake-ups
  const auto work = [&](const SessionSpec& of) {
    return std::min<Duration>(of.workload.kernel, plan.settings.drain_wait_max) + kOverhead;
  };
  Duration round{};
  size_t siblings = 0;
  for (const SessionSpec& other : plan.sessions) {
    round += plan.turn_of(other) + work(other);
    siblings += other.tenant == session.tenant ? 1 : 0;
  }
  const int64_t overdrawn =
      2 + (work(session) + plan.settings.drain_wait_max * (plan.endless ? 1 : 0)) / plan.turn_of(session);
  return round * overdrawn * static_cast<int64_t>(siblings) * (plan.gangs ? 2 : 1);
}

class Watch {
 public:
  Watch(const Plan& plan, World& world) : plan_(plan), world_(world) {}

  std::string after_decision() {
    const Policy& policy = world_.policy();
    for (DeviceIndex device = 0; device < plan_.devices; ++device) {
      Duration charged{};
      for (uint32_t tenant = 1; tenant <= plan_.tenants.size(); ++tenant)
        charged += policy.gpu_time(TenantId(tenant), device);
      if (charged + policy.system_time(device) + policy.idle_time(device) != policy.settled_time(device))
        return "the tenants' charges, the system's and idle time are not the device's time";
      const Duration leap = plan_.jumps.empty() ? 0ms : 250ms;
      if (charged > world_.now() - 1s + leap) return "more was charged than time went by";
    }
    // Side by side, and beside work that outlasts its turn, times overlap, and what each had is not known.
    bool co_runs = false;
    for (const World::SessionState& session : world_.sessions())
      co_runs |= policy.account(session.id).regime == Regime::co_run;
    const Duration since = world_.now() - decided_at_;
    if (co_runs || co_ran_last_) co_ran_ += since;
    if (overlapped_last_) overlapped_ += since;
    co_ran_last_ = co_runs;
    overlapped_last_ = std::count_if(world_.sessions().begin(), world_.sessions().end(),
                                     [](const auto& session) { return session.in_flight; }) > 1;
    decided_at_ = world_.now();
    note_barred();
    if (!plan_.jumps.empty() || !plan_.one_class || plan_.awkward) return starved_by_awkward();
    for (const World::SessionState& session : world_.sessions()) {
      if (!session.alive || !session.waiting || session.gate_open) continue;
      if (world_.now() - waits_since(session) > wait_max(plan_, session.spec))
        return "session " + std::to_string(static_cast<uint64_t>(session.id)) + " starves";
    }
    return idle_device();
  }

  // Tenants that always had work since all had come share by weight, to the turn; and what was charged is what the
  // hardware did for them.
  std::string at_end() {
    const bool simple =
        plan_.one_class && plan_.jumps.empty() && !plan_.dies && !plan_.endless && !plan_.awkward && plan_.devices == 1;
    if (!simple) return {};
    std::vector<const World::SessionState*> saturating;
    for (const World::SessionState& session : world_.sessions()) {
      const bool sole = std::count_if(plan_.sessions.begin(), plan_.sessions.end(), [&](const SessionSpec& other) {
                          return other.tenant == session.spec.tenant;
                        }) == 1;
      if (sole && session.alive && session.spec.workload.burst == HardwareDevice::kEndless)
        saturating.push_back(&session);
    }
    for (const World::SessionState* one : saturating) {
      for (const World::SessionState* other : saturating) {
        if (one->spec.arrives > other->spec.arrives) continue;
        const double ahead =
            (charged(*one) - before(*one)) / weight(*one) - (charged(*other) - before(*other)) / weight(*other);
        if (std::abs(ahead) > slack(*one) + slack(*other)) {
          return "tenants " + std::to_string(static_cast<uint32_t>(one->spec.tenant)) + " and " +
                 std::to_string(static_cast<uint32_t>(other->spec.tenant)) + " do not share by weight: off by " +
                 std::to_string(ahead * 1e3) + " ms, " + std::to_string((slack(*one) + slack(*other)) * 1e3) +
                 " allowed";
        }
      }
    }
    for (const World::SessionState* session : saturating) {
      if (co_ran_ != Duration::zero()) break;
      const double executed = seconds(world_.executed(session->id)),
                   openings = static_cast<double>(session->openings + 1);
      if (std::abs(charged(*session) - executed) > openings * kOpeningSlack + kEndSlack + seconds(overlapped_)) {
        return "tenant " + std::to_string(static_cast<uint32_t>(session->spec.tenant)) + " was charged " +
               std::to_string(charged(*session) * 1e3) + " ms and got " + std::to_string(executed * 1e3);
      }
    }
    return {};
  }

  // Call it when all sessions have come.
  void all_have_come() {
    for (uint32_t tenant = 1; tenant <= plan_.tenants.size(); ++tenant)
      before_.push_back(world_.policy().gpu_time(TenantId(tenant), 0));
  }

 private:
  // Who waits for work of its own tenant that does not end may wait for ever.
  void note_barred() {
    barred_.resize(world_.sessions().size());
    for (const World::SessionState& session : world_.sessions()) {
      if (world_.policy().account(session.id).hold == Hold::sibling)
        barred_[static_cast<uint64_t>(session.id) - 1] = world_.now();
    }
  }
  Time waits_since(const World::SessionState& session) const {
    return std::max(session.waiting_since, barred_[static_cast<uint64_t>(session.id) - 1]);
  }
  // Beside those who do not come or do not drain everybody of the highest class is served, if later.
  std::string starved_by_awkward() const {
    constexpr Duration kWaitMax = 3s;
    if (!plan_.one_class || !plan_.jumps.empty() || plan_.gangs) return {};
    for (const World::SessionState& session : world_.sessions()) {
      if (session.alive && session.waiting && !session.gate_open && world_.now() - waits_since(session) > kWaitMax)
        return "session " + std::to_string(static_cast<uint64_t>(session.id)) + " starves beside awkward ones";
    }
    return {};
  }
  // A device that nobody uses while a session stands at its gate: for longer than a lease lingers and the wake-ups
  // take.
  std::string idle_device() {
    if (plan_.gangs) return {};  // a gang's devices wait for the one that drains last
    constexpr Duration kIdleMax = 6ms;
    idle_since_.resize(plan_.devices, Time::max());
    bursts_before_.resize(plan_.devices);
    for (DeviceIndex device = 0; device < plan_.devices; ++device) {
      bool wanted = false, used = false;
      uint64_t bursts = 0;
      for (const World::SessionState& session : world_.sessions()) {
        if (!session.alive ||
            std::find(session.spec.devices.begin(), session.spec.devices.end(), device) == session.spec.devices.end())
          continue;
        wanted |= session.waiting && !session.gate_open;
        used |= session.in_flight;
        bursts += session.bursts;
      }
      used |= bursts != bursts_before_[device];
      bursts_before_[device] = bursts;
      if (used || !wanted) idle_since_[device] = Time::max();
      else idle_since_[device] = std::min(idle_since_[device], world_.now());
      if (idle_since_[device] != Time::max() && world_.now() - idle_since_[device] > kIdleMax)
        return "device " + std::to_string(device) + " idles while a session waits";
    }
    return {};
  }

  double weight(const World::SessionState& session) const { return plan_.policy_of(session.spec).weight; }
  double charged(const World::SessionState& session) const {
    return seconds(world_.policy().gpu_time(session.spec.tenant, 0));
  }
  double before(const World::SessionState& session) const {
    return seconds(before_[static_cast<uint32_t>(session.spec.tenant) - 1]);
  }
  // A turn that is under way or was cut short, a kernel that ran over its end, and what was tried side by side.
  double slack(const World::SessionState& session) const {
    return (seconds(3 * plan_.turn_of(session.spec)) + seconds(2 * session.spec.workload.kernel) + seconds(co_ran_) +
            0.003) /
           weight(session);
  }

  // From a drain to where the worker sees it, and a wake-up at the end that has not been decided about.
  static constexpr double kOpeningSlack = 0.1e-3, kEndSlack = 1.5e-3;

  const Plan& plan_;
  World& world_;
  bool co_ran_last_ = false, overlapped_last_ = false;
  Duration co_ran_{}, overlapped_{};
  Time decided_at_ = 1s;
  std::vector<Time> barred_;  // by session: when it was last
  std::vector<Time> idle_since_;
  std::vector<uint64_t> bursts_before_;
  std::vector<Duration> before_;
};

std::string scenario(uint64_t seed, bool verbose) {
  Choices choices(seed);
  const Plan plan = make_plan(choices);
  Latencies latencies;
  latencies.spike_probability = plan.spikes;
  World world(choices.next(), plan.devices, plan.settings, latencies);
  world.verbose = verbose;
  for (uint32_t i = 0; i < plan.tenants.size(); ++i) world.tenant(TenantId(i + 1), plan.tenants[i]);
  Time last_arrival = 1s;
  for (const SessionSpec& spec : plan.sessions) {
    world.add(spec);
    last_arrival = std::max(last_arrival, spec.arrives);
    if (verbose) {
      std::printf(
          "tenant %u (class %u, weight %.2f) on %zu devices from device %u: kernels %.3f ms, bursts %.3f ms x %u, "
          "rests %.3f to %.3f ms, %u "
          "contexts\n",
          static_cast<unsigned>(spec.tenant), static_cast<unsigned>(plan.policy_of(spec).service_class),
          plan.policy_of(spec).weight, spec.devices.size(), spec.devices[0], seconds(spec.workload.kernel) * 1e3,
          seconds(spec.workload.burst) * 1e3, spec.workload.bursts_per_request, seconds(spec.workload.rest_min) * 1e3,
          seconds(spec.workload.rest_max) * 1e3, spec.workload.contexts);
    }
  }
  for (const auto& [at, by] : plan.jumps) world.jump_clock(at, by);
  Watch watch(plan, world);
  world.after_decision = [&] { return watch.after_decision(); };
  world.run(last_arrival + 1ms);
  watch.all_have_come();
  if (world.wrong().empty()) world.run(std::max(1s + plan.length, last_arrival + 2ms));
  if (world.wrong().empty()) world.decide_now();
  if (verbose) world.print_sessions();
  return world.wrong().empty() ? watch.at_end() : world.wrong();
}

}  // namespace
}  // namespace gpuwire::scheduler::test

int main(int argc, char** argv) {
  constexpr uint64_t kScenarios = 100000;
  return gpuwire::scheduler::test::run_scenarios(argc, argv, gpuwire::scheduler::test::scenario, kScenarios);
}
