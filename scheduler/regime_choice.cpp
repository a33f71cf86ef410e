// Free, co-run or lease: chosen for each group of devices that sessions tie together.
#include <algorithm>
#include <map>

#include "scheduler/policy_state.hpp"

namespace gpuwire::scheduler {
namespace {

constexpr unsigned kGoodForecasts = 2;       // in a row, before co-running begins
// How much better co-running must promise to be when it begins, and how little may be left of that while it lasts.
constexpr double kBeginTogether = 1.10, kBeginWorst = 1.05;
constexpr double kStayTogether = 1.02, kStayWorst = 0.97, kStayLoad = 1.1;
// What is measured must reach this part of what leases would give.
constexpr double kMeasuredOfLease = 0.95, kMeasuredOfLeaseLight = 0.8;
constexpr Duration kMeasureFor = std::chrono::milliseconds(40);
constexpr Duration kRestMin = std::chrono::milliseconds(100), kRestMax = std::chrono::seconds(2);

// Groups of devices that sessions with several devices tie together.
class Groups {
 public:
  explicit Groups(size_t devices) : parent_(devices) {
    for (size_t i = 0; i < devices; ++i) parent_[i] = static_cast<DeviceIndex>(i);
  }
  DeviceIndex of(DeviceIndex device) {
    while (parent_[device] != device) device = parent_[device];
    return device;
  }
  void tie(DeviceIndex a, DeviceIndex b) { parent_[of(b)] = of(a); }

 private:
  std::vector<DeviceIndex> parent_;
};

double sum_of_weights(const std::vector<Session*>& members) {
  double sum = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto same = [&](const Session* other) { return other->tenant == members[i]->tenant; };
    if (std::none_of(members.begin(), members.begin() + static_cast<ptrdiff_t>(i), same)) sum += members[i]->tenant->policy.weight;
  }
  return sum;
}

}  // namespace

bool Policy::State::co_run_is_better(const std::vector<Session*>& members, CoRunState& state, bool co_running) {
  co_runners.clear();
  const double weights = sum_of_weights(members);
  for (const Session* member : members) {
    if (!member->demand.known()) {
      state.good = 0;
      return false;
    }
    const auto siblings = std::count_if(members.begin(), members.end(), [&](const Session* other) { return other->tenant == member->tenant; });
    co_runners.push_back({member->demand.busy_seconds(), member->demand.gap_seconds(), member->tenant->policy.weight / weights / static_cast<double>(siblings), 0});
  }
  const CoRunForecast expected = forecast(co_runners, settings);
  if (!co_running) {
    const bool good = expected.load <= settings.co_run_load_max || (expected.together >= kBeginTogether * expected.leased && expected.worst >= kBeginWorst);
    state.good = good && now >= state.not_before ? state.good + 1 : 0;
    if (state.good < kGoodForecasts) return false;
    state.since = now;
    for (Session* member : members) member->demand.forget_together();
    return true;
  }
  const bool light = expected.load <= kStayLoad;
  bool stay = light || (expected.together >= kStayTogether * expected.leased && expected.worst >= kStayWorst);
  if (now - state.since >= kMeasureFor) {
    double together = 0, leased = 0;
    const double least = light ? kMeasuredOfLeaseLight : kMeasuredOfLease;
    for (size_t i = 0; i < members.size(); ++i) {
      const double rate = members[i]->demand.rate_together();
      together += rate;
      leased += co_runners[i].leased;
      stay = stay && rate >= least * co_runners[i].leased;
    }
    stay = stay && together >= least * leased;
  }
  if (!stay) {
    state.rest = now - state.since > kRestMax ? kRestMin : std::clamp(2 * state.rest, kRestMin, kRestMax);
    state.not_before = now + state.rest;
    state.good = 0;
  }
  return stay;
}

void Policy::State::set_regime(DeviceIndex index, Regime regime) {
  Device& device = devices[index];
  if (device.regime == regime) return;
  if (device.regime == Regime::lease) settle_leases(index, true);
  device.regime = regime;
  if (regime != Regime::lease) return;
  for (Session* session : device.sessions) {
    if (session->seen.in_flight && !session->started) {
      session->started = true;
      session->started_at = now;
    }
  }
}

void Policy::State::choose_regimes() {
  const bool timed = now >= regimes_at;
  if (!timed && !newcomer) return;
  newcomer = false;
  Groups groups(devices.size());
  for (auto& [id, session] : sessions) {
    if (!active(*session)) continue;
    for (const DeviceIndex device : session->devices) groups.tie(session->devices.front(), device);
  }
  std::map<DeviceIndex, std::vector<Session*>> members;
  for (auto& [id, session] : sessions) {
    if (active(*session)) members[groups.of(session->devices.front())].push_back(session.get());
  }
  std::map<DeviceIndex, Regime> chosen;
  for (auto& [root, group] : members) {
    Device& first = devices[root];
    const bool one_rank = std::all_of(group.begin(), group.end(), [&](const Session* s) { return s->rank == group.front()->rank; });
    Regime regime = Regime::lease;
    if (group.size() <= 1) regime = Regime::free;
    else if (!one_rank) first.co_run.good = 0;
    else if (timed || first.regime == Regime::co_run) regime = co_run_is_better(group, first.co_run, first.regime == Regime::co_run) ? Regime::co_run : Regime::lease;
    chosen[root] = regime;
  }
  for (DeviceIndex index = 0; index < devices.size(); ++index) {
    if (!devices[index].known) continue;
    const DeviceIndex root = groups.of(index);
    const auto found = chosen.find(root);
    if (root != index) devices[index].co_run = devices[root].co_run;
    set_regime(index, found == chosen.end() ? Regime::free : found->second);
  }
  if (timed) regimes_at = now + settings.regime_interval;
}

}  // namespace gpuwire::scheduler
