// Free, co-run or lease: chosen for each group of devices that sessions tie together.
#include <algorithm>
#include <iterator>
#include <map>

#include "scheduler/policy_state.hpp"

namespace gpuwire::scheduler {
namespace {

constexpr unsigned kGoodForecasts = 2;  // in a row, before co-running begins
// How much better co-running must promise to be when it begins, and how little may be left of that while it lasts.
constexpr double kBeginTogether = 1.10, kBeginWorst = 1.05;
constexpr double kStayTogether = 1.02, kStayWorst = 0.97, kStayLoad = 1.1;
// What is measured must reach this part of what leases would give.
constexpr double kMeasuredOfLease = 0.95, kMeasuredOfLeaseLight = 0.8, kMeasuredOfTrial = 1.03;
constexpr Duration kMeasureFor = std::chrono::milliseconds(40);
// Co-running is tried against the forecast when sessions have gaps like these, and are quiet for that much, summed over them.
constexpr double kTrialGapSeconds = 40e-6, kTrialQuiet = 0.4;
constexpr Duration kTrialRestMin = std::chrono::milliseconds(300), kTrialRestMax = std::chrono::seconds(10);
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

// Those of the lowest rank, when no rank above it has more than one: a lone session above them only takes turns with all of them.
std::vector<Session*> co_run_candidates(const std::vector<Session*>& group) {
  Rank lowest = Rank::realtime;
  for (const Session* session : group) lowest = std::max(lowest, session->rank);
  std::array<unsigned, kRanks> count{};
  for (const Session* session : group) ++count[static_cast<unsigned>(session->rank)];
  for (unsigned rank = 0; rank < static_cast<unsigned>(lowest); ++rank) {
    if (count[rank] > 1) return {};
  }
  std::vector<Session*> runners;
  if (count[static_cast<unsigned>(lowest)] < 2) return runners;
  std::copy_if(group.begin(), group.end(), std::back_inserter(runners), [&](const Session* session) { return session->rank == lowest; });
  return runners;
}

}  // namespace

bool Policy::State::expect_co_run(const std::vector<Session*>& members) {
  co_runners.clear();
  const double weights = sum_of_weights(members);
  for (const Session* member : members) {
    if (!member->demand.known()) return false;
    const auto siblings = std::count_if(members.begin(), members.end(), [&](const Session* other) { return other->tenant == member->tenant; });
    const double share = member->tenant->policy.weight / weights / static_cast<double>(siblings);
    co_runners.push_back({member->demand.busy_seconds(), member->demand.gap_seconds(), share, 0});
  }
  return true;
}

// A burst that a hiccup splits looks like two to the meter, and the forecast then is too dark. So where there is much rest, trying says more.
bool Policy::State::worth_a_trial(const std::vector<Session*>& members) const {
  double quiet = 0;
  for (const Session* member : members) {
    if (member->demand.gap_seconds() < kTrialGapSeconds) return false;
    quiet += member->demand.quiet_part();
  }
  return quiet >= kTrialQuiet;
}

bool Policy::State::begin_co_run(const std::vector<Session*>& members, CoRunState& state) {
  if (!expect_co_run(members)) {
    state.good = 0;
    return false;
  }
  const CoRunForecast expected = forecast(co_runners, settings);
  const bool better = expected.together >= kBeginTogether * expected.leased && expected.worst >= kBeginWorst;
  const bool good = expected.load <= settings.co_run_load_max || better;
  state.good = good && now >= state.not_before ? state.good + 1 : 0;
  if (state.trial_at == Time{}) state.trial_at = now + kTrialRestMin;
  state.trial = !good && now >= std::max(state.trial_at, state.not_before) && worth_a_trial(members);
  if (state.good < kGoodForecasts && !state.trial) return false;
  state.since = now;
  for (Session* member : members) member->demand.forget_together();
  return true;
}

bool Policy::State::stay_in_co_run(const std::vector<Session*>& members, CoRunState& state) {
  if (!expect_co_run(members)) return false;
  const CoRunForecast expected = forecast(co_runners, settings);
  const bool light = expected.load <= kStayLoad;
  const bool good = light || (expected.together >= kStayTogether * expected.leased && expected.worst >= kStayWorst);
  if (now - state.since < kMeasureFor) return true;
  double together = 0, leased = 0;
  const double least = state.trial ? kMeasuredOfTrial : light ? kMeasuredOfLeaseLight : kMeasuredOfLease;
  bool measured = true;
  for (size_t i = 0; i < members.size(); ++i) {
    const double rate = members[i]->demand.rate_together();
    together += rate;
    leased += co_runners[i].leased;
    measured = measured && rate >= least * co_runners[i].leased;
  }
  measured = measured && together >= least * leased;
  state.trial = state.trial || !good;
  if (measured) return true;
  const bool lasted = now - state.since > kRestMax;
  if (state.trial) {
    state.trial_rest = lasted ? kTrialRestMin : std::clamp(2 * state.trial_rest, kTrialRestMin, kTrialRestMax);
    state.trial_at = now + state.trial_rest;
  } else {
    state.rest = lasted ? kRestMin : std::clamp(2 * state.rest, kRestMin, kRestMax);
    state.not_before = now + state.rest;
  }
  state.trial = false;
  state.good = 0;
  return false;
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
    const std::vector<Session*> runners = co_run_candidates(group);
    Regime regime = Regime::lease;
    if (group.size() <= 1) regime = Regime::free;
    else if (runners.empty()) first.co_run.good = 0;
    else if (first.regime == Regime::co_run) regime = stay_in_co_run(runners, first.co_run) ? Regime::co_run : Regime::lease;
    else if (timed) regime = begin_co_run(runners, first.co_run) ? Regime::co_run : Regime::lease;
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
