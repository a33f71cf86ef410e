// Chooses the regime (free, co-run or lease) of each group of devices that sessions with several devices connect.
#include <algorithm>
#include <iterator>
#include <map>

#include "scheduler/policy_state.hpp"

namespace gpuwire::scheduler {
namespace {

// Groups of devices that sessions with several devices connect.
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
    if (std::none_of(members.begin(), members.begin() + static_cast<ptrdiff_t>(i), same))
      sum += members[i]->tenant->policy.weight;
  }
  return sum;
}

// Returns the sessions of the lowest rank, if each higher rank has at most one session: a lone higher session only
// takes turns with all of them.
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
  std::copy_if(group.begin(), group.end(), std::back_inserter(runners),
               [&](const Session* session) { return session->rank == lowest; });
  return runners;
}

}  // namespace

bool Policy::State::choose_co_run(const std::vector<Session*>& group, const std::vector<Session*>& runners,
                                  CoRunChoice& choice) const {
  const double weights = sum_of_weights(runners);
  std::vector<CoRunner> members;
  for (const Session* runner : runners) {
    const auto siblings = std::count_if(runners.begin(), runners.end(),
                                        [&](const Session* other) { return other->tenant == runner->tenant; });
    members.push_back({runner->id, runner->tenant->id,
                       runner->tenant->policy.weight / weights / static_cast<double>(siblings),
                       runner->seen.completions, runner->own, runner->seen.in_flight, runner->counted()});
  }
  Duration above{};
  for (const Session* session : group) {
    if (session->rank < runners.front()->rank) above += session->open;
  }
  const bool near =
      std::any_of(runners.begin(), runners.end(), [&](const Session* runner) { return near_higher(*runner); });
  return choice.choose(members, above, settings.turn_min, near, now);
}

void Policy::State::set_regime(DeviceIndex index, Regime regime) {
  Device& device = devices[index];
  if (device.regime == regime) return;
  if (device.regime == Regime::lease) settle_leases(index, true);
  // Completions have not been counted until now.
  if (device.regime == Regime::free) {
    for (Session* session : device.sessions) session->progress_at = now;
  }
  device.regime = regime;
  if (regime == Regime::free) device.co_run.pause();
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
  if (!timed && !news) return;
  news = false;
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
    else if (runners.empty()) first.co_run = {};
    else regime = choose_co_run(group, runners, first.co_run) ? Regime::co_run : Regime::lease;
    chosen[root] = regime;
  }
  for (DeviceIndex index = 0; index < devices.size(); ++index) {
    if (!devices[index].known) continue;
    const DeviceIndex root = groups.of(index);
    const auto found = chosen.find(root);
    if (root != index) devices[index].co_run = devices[root].co_run;
    set_regime(index, found == chosen.end() ? Regime::free : found->second);
  }
  if (timed) regimes_at = now + settings.turn_min;
}

}  // namespace gpuwire::scheduler
