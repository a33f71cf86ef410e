#include "scheduler/co_run.hpp"

#include <algorithm>
#include <utility>

namespace gpuwire::scheduler {
namespace {

// Unit: turns. A trial: the time that its begin disturbs, which is also the time until a bad one is broken off; its
// usual and its maximum length (longer for a session with few completions). Turns are measured for twice the usual
// length, which is a round of two sessions, until each session has completed enough to be counted.
constexpr double kGlance = 0.8, kTrial = 1.9, kTrialMax = 9;
constexpr double kTrialHopeless = 0.6;
constexpr uint64_t kCountMin = 6;
constexpr double kOwnMin = 0.2;  // less time would weigh the edges of its turn too much
// A program that has just come or returned loads its first kernels, whose times its worker does not know yet: this much
// of its own time is not rated.
constexpr double kBeginning = 0.5;
// Programs with unequal submissions complete more or fewer of them from window to window. A trial whose sum is close to
// that of turns is repeated, with the counts added, up to kRoundsMax rounds.
constexpr unsigned kRoundsMax = 4;
constexpr double kWatch = 2.8;  // the time side by side from one judgement to the next
// Side by side begins if its sum is better than that of turns by this part, and continues until it is worse by it.
constexpr double kMargin = 0.03;
// The factor of the required sum if a higher class is near: several sessions have work in flight then, which delays
// each of its requests.
constexpr double kNearHigher = 1.2;
// The promise to each session: at least this part of what its share of the devices' time is worth to it. Other
// sessions' reported completions cannot take more from it.
constexpr double kPromise = 0.94;
// Unit: turns. A session that is a turn behind has the devices alone until it has caught up, up to kAloneMax at a time,
// after waiting as long at most for the others' work in flight. The same bounds how far a session is counted as behind
// or ahead.
constexpr double kAloneMax = 5;
// The pause after a failed trial. Turns are measured again, and absent sessions are forgotten, after the longest.
constexpr Duration kRestMin = std::chrono::milliseconds(500), kRestMax = std::chrono::seconds(10);
constexpr int kRestGrowth = 4;
constexpr size_t kVerdictsMax = 32;

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }
Duration times(double factor, Duration duration) {
  return Duration(static_cast<int64_t>(factor * static_cast<double>(duration.count())));
}

}  // namespace

bool CoRunChoice::choose(std::span<const CoRunner> runners, Duration above, Duration turn, bool near_higher, Time now) {
  turn_ = turn;
  near_higher_ = near_higher;
  const Duration passed = now - called_at_;
  const Duration elapsed = passed - std::clamp(above - above_, Duration::zero(), passed);
  called_at_ = now;
  above_ = above;
  const bool changed = update_members(runners, now);
  // A session with uncounted work would appear slower in its turns than it is, and faster side by side.
  const bool counted = std::all_of(runners.begin(), runners.end(), [](const CoRunner& one) { return one.counted; });
  const bool whole = std::exchange(counted_, counted) && counted;
  // One session has been alone: its completions meanwhile were not counted.
  const bool paused = std::exchange(paused_, false);
  count(runners, paused ? Duration::zero() : elapsed, whole);
  if (paused && phase_ == Phase::trial) take_turns();
  if (paused || changed) {
    bad_ = false;
    begin_rounds();
    begin_window();
  }
  switch (phase_) {
    case Phase::turns: measure_turns(runners, now); break;
    case Phase::trial: judge_trial(runners, now); break;
    case Phase::together:
      watch(runners, now);
      if (phase_ == Phase::together) choose_alone(runners, elapsed);
      break;
  }
  return phase_ != Phase::turns;
}

bool CoRunChoice::update_members(std::span<const CoRunner> runners, Time now) {
  std::erase_if(records_, [&](const auto& entry) { return now - entry.second.seen > kRestMax; });
  std::erase_if(verdicts_, [&](const auto& entry) { return now - entry.second.seen > kRestMax; });
  std::erase_if(rests_, [&](const auto& entry) { return now >= entry.second; });
  Members members;
  for (const CoRunner& runner : runners) {
    members.push_back(runner.id);
    Record& record = records_[runner.id];
    if (!std::binary_search(members_.begin(), members_.end(), runner.id)) {
      record.completed = runner.completed;
      record.own = runner.own;
      record.owed = Duration::zero();
      record.beginning = times(kBeginning, turn_);
    }
    record.seen = now;
    record.target = kPromise * runner.share;
  }
  std::sort(members.begin(), members.end());
  const bool changed = members != members_;
  if (changed) change_members(runners, std::move(members), now);
  verdict().seen = now;
  return changed;
}

// Results of other members do not apply to these: they are measured by turns first. But if a session has left, the
// remaining ones continue side by side.
void CoRunChoice::change_members(std::span<const CoRunner> runners, Members members, Time now) {
  const bool some_left =
      phase_ == Phase::together && std::includes(members_.begin(), members_.end(), members.begin(), members.end());
  // A member has left before the trial had a result.
  if (phase_ == Phase::trial) rest_of_tenants(now);
  members_ = std::move(members);
  tenants_.clear();
  for (const CoRunner& runner : runners) tenants_.push_back(runner.tenant);
  std::sort(tenants_.begin(), tenants_.end());
  tenants_.erase(std::unique(tenants_.begin(), tenants_.end()), tenants_.end());
  if (verdicts_.size() >= kVerdictsMax) {
    verdicts_.erase(std::min_element(verdicts_.begin(), verdicts_.end(),
                                     [](const auto& a, const auto& b) { return a.second.seen < b.second.seen; }));
  }
  auto [found, unknown] = verdicts_.try_emplace(members_);
  if (unknown && some_left) found->second.together = true;
  if (const auto rest = rests_.find(tenants_); unknown && rest != rests_.end()) found->second.trial_at = rest->second;
  const bool counted =
      std::all_of(runners.begin(), runners.end(), [&](const CoRunner& runner) { return records_[runner.id].rate > 0; });
  take_turns();
  if (!counted || !found->second.together) return;
  metrics_.turns = 0;
  for (const CoRunner& runner : runners) metrics_.turns += records_[runner.id].part;
  phase_ = Phase::together;
  since_ = now;
}

// Completions since the last call belong to the phase of that call.
void CoRunChoice::count(std::span<const CoRunner> runners, Duration elapsed, bool whole) {
  const bool counts = whole && (phase_ != Phase::together || alone_ == SessionId{});
  if (counts) window_ += elapsed;
  if (whole) watched_ += elapsed;
  for (const CoRunner& runner : runners) {
    Record& record = records_[runner.id];
    const uint64_t done = runner.completed - std::min(runner.completed, record.completed);
    const Duration own = runner.own - record.own;
    record.completed = runner.completed;
    record.own = runner.own;
    if (elapsed == Duration::zero()) continue;
    record.done_watched += done;
    if (counts) count_in_window(record, done, own);
    // A session's due depends on its own work only.
    if (phase_ != Phase::together || record.rate <= 0 || !runner.counted) continue;
    const Duration got =
        std::min(elapsed, Duration(static_cast<int64_t>(1e9 * static_cast<double>(done) / record.rate)));
    const Duration most = times(kAloneMax, turn_);
    record.owed = std::clamp(record.owed + times(record.target, elapsed) - got, -most, most);
    if (runner.id == alone_) alone_done_ += done;
  }
}

void CoRunChoice::count_in_window(Record& record, uint64_t done, Duration own) const {
  record.own_in_window += own;
  if (phase_ == Phase::turns && record.beginning > Duration::zero()) {
    record.beginning -= own;
    return;
  }
  record.done += done;
  record.rated_in_window += own;
}

// A trial costs a session that gets more by turns. So programs that come one after the other are tried no more often
// than one that stays.
void CoRunChoice::rest_of_tenants(Time now) {
  if (tenants_.size() > 1) rests_[tenants_] = now + kRestMin;
}

void CoRunChoice::begin_window() {
  for (auto& [id, record] : records_) {
    record.done = record.done_watched = 0;
    record.own_in_window = record.rated_in_window = Duration::zero();
  }
  window_ = watched_ = Duration::zero();
}

void CoRunChoice::begin_rounds() {
  for (auto& [id, record] : records_) {
    record.done_in_turns = record.done_in_trials = 0;
    record.own_in_turns = record.rated_in_turns = Duration::zero();
  }
  rounds_ = 0;
  turns_ = trials_ = Duration::zero();
}

void CoRunChoice::take_turns() {
  phase_ = Phase::turns;
  alone_ = SessionId{};
  bad_ = false;
  begin_window();
}

void CoRunChoice::measure_turns(std::span<const CoRunner> runners, Time now) {
  const auto enough = [&](const CoRunner& runner) {
    const Record& record = records_[runner.id];
    return record.done >= kCountMin && record.rated_in_window >= times(kOwnMin, turn_);
  };
  if (window_ < times(2 * kTrial, turn_)) return;
  if (!std::all_of(runners.begin(), runners.end(), enough)) return;
  metrics_.turns = 0;
  for (const CoRunner& runner : runners) {
    Record& record = records_[runner.id];
    const Duration own = record.own_in_turns + record.own_in_window;
    record.rate = static_cast<double>(record.done_in_turns + record.done) /
                  seconds(record.rated_in_turns + record.rated_in_window);
    record.part = std::min(1.0, seconds(own) / seconds(turns_ + window_));
    metrics_.turns += record.part;
  }
  if (now < verdict().trial_at || trial_length(runners) > times(kTrialMax, turn_)) {
    // A program may change.
    if (window_ > kRestMin) begin_window();
    return;
  }
  phase_ = Phase::trial;
  settles_ = times(kGlance, turn_);
  ++metrics_.trials;
  for (const CoRunner& runner : runners) {
    Record& record = records_[runner.id];
    record.done_in_turns += record.done;
    record.own_in_turns += record.own_in_window;
    record.rated_in_turns += record.rated_in_window;
  }
  turns_ += window_;
  begin_window();
}

// Returns the time in which each session, at its due rate, completes kCountMin submissions.
Duration CoRunChoice::trial_length(std::span<const CoRunner> runners) const {
  Duration length = times(kTrial, turn_);
  for (const CoRunner& runner : runners) {
    const Record& record = records_.at(runner.id);
    const double due = record.rate * runner.share;
    if (due <= 0) return Duration::max();
    length =
        std::max(length, Duration(static_cast<int64_t>(std::min(1e9 * static_cast<double>(kCountMin) / due, 1e18))));
  }
  return length;
}

// Returns the session's rate relative to its rate alone, cut to 1: a higher value is a false report.
double CoRunChoice::part_of(const Record& record) const {
  if (record.rate <= 0 || window_ <= Duration::zero()) return 0;
  return std::min(1.0,
                  static_cast<double>(record.done_in_trials + record.done) / seconds(trials_ + window_) / record.rate);
}

// Returns the sum of all sessions' parts if they run side by side for as long as the rest of the time, alone, makes up
// for each session's lack. A session's lack shrinks by less than the time side by side grows, so a single length
// fills the time.
double CoRunChoice::expected(std::span<const CoRunner> runners) const {
  const auto lacks = [&](const CoRunner& runner, double side_by_side) {
    const Record& record = records_.at(runner.id);
    return std::max(0.0, record.target - part_of(record) * side_by_side);
  };
  const auto fits = [&](double side_by_side) {
    double needed = side_by_side;
    for (const CoRunner& runner : runners) needed += lacks(runner, side_by_side);
    return needed <= 1;
  };
  constexpr int kSteps = 20;
  double least = 0, most = 1;
  if (fits(most)) least = most;
  for (int step = 0; step < kSteps && least < most; ++step) {
    const double middle = (least + most) / 2;
    (fits(middle) ? least : most) = middle;
  }
  double total = 0;
  for (const CoRunner& runner : runners) total += part_of(records_.at(runner.id)) * least + lacks(runner, least);
  return total;
}

void CoRunChoice::measure_together(std::span<const CoRunner> runners) {
  metrics_.side_by_side = 0;
  for (const CoRunner& runner : runners) metrics_.side_by_side += part_of(records_[runner.id]);
  metrics_.expected = expected(runners);
}

// Returns the sum of parts that side by side has to exceed.
double CoRunChoice::required() const { return (near_higher_ ? kNearHigher : 1) * metrics_.turns; }

void CoRunChoice::judge_trial(std::span<const CoRunner> runners, Time now) {
  if (settles_ > Duration::zero()) {
    if (window_ < settles_) return;
    settles_ = Duration::zero();
    begin_window();
    return;
  }
  measure_together(runners);
  const bool hopeless = window_ >= times(kGlance, turn_) && metrics_.side_by_side < kTrialHopeless * metrics_.turns;
  // A session that gets far more than its due has enough completions long before that.
  const bool counted = window_ >= times(kTrial, turn_) &&
                       std::all_of(runners.begin(), runners.end(),
                                   [&](const CoRunner& runner) { return records_[runner.id].done >= 2 * kCountMin; });
  if (!hopeless && !counted && window_ < trial_length(runners)) return;
  const double enough = (1 + kMargin) * required();
  if (metrics_.expected >= enough) go_together(runners, now);
  else if (!hopeless && metrics_.expected >= kPromise * required() && rounds_ + 1 < kRoundsMax && harms_nobody(runners))
    poll_again(now);
  else give_up(now);
}

// Whether a repeated trial harms no session: each gets its due in it. With very different weights or more than two
// sessions there is no repetition.
bool CoRunChoice::harms_nobody(std::span<const CoRunner> runners) const {
  if (runners.size() != 2 ||
      std::max(runners[0].share, runners[1].share) >= 2 * std::min(runners[0].share, runners[1].share))
    return false;
  return std::all_of(runners.begin(), runners.end(), [&](const CoRunner& runner) {
    const Record& record = records_.at(runner.id);
    return part_of(record) >= record.target;
  });
}

// Repeats turns and a trial; the counts of this trial are kept.
void CoRunChoice::poll_again(Time now) {
  ++rounds_;
  for (const SessionId id : members_) {
    Record& record = records_[id];
    record.done_in_trials += record.done;
  }
  trials_ += window_;
  verdict().trial_at = now;
  take_turns();
}

void CoRunChoice::go_together(std::span<const CoRunner> runners, Time now) {
  phase_ = Phase::together;
  since_ = now;
  bad_ = false;
  alone_ = SessionId{};
  for (const CoRunner& runner : runners) records_[runner.id].owed = Duration::zero();
  verdict().together = true;
  begin_window();
  begin_rounds();
}

// Returns the sum of all sessions' parts since the last judgement, with the time that sessions were alone.
double CoRunChoice::done_in_all(std::span<const CoRunner> runners) const {
  double total = 0;
  for (const CoRunner& runner : runners) {
    const Record& record = records_.at(runner.id);
    if (record.rate > 0)
      total += std::min(1.0, static_cast<double>(record.done_watched) / seconds(watched_) / record.rate);
  }
  return total;
}

bool CoRunChoice::breaks_promise(std::span<const CoRunner> runners) const {
  return std::any_of(runners.begin(), runners.end(),
                     [&](const CoRunner& runner) { return records_.at(runner.id).owed >= times(kAloneMax, turn_); });
}

void CoRunChoice::watch(std::span<const CoRunner> runners, Time now) {
  if (watched_ < times(kWatch, turn_)) return;
  const bool bad = done_in_all(runners) < (1 - kMargin) * required() || breaks_promise(runners);
  if (window_ > Duration::zero()) measure_together(runners);
  if (std::exchange(bad_, bad) && bad) return give_up(now);
  begin_window();
  // The measurement of turns is old by now.
  if (now - since_ >= kRestMax) take_turns();
}

void CoRunChoice::choose_alone(std::span<const CoRunner> runners, Duration elapsed) {
  if (alone_ != SessionId{}) {
    alone_for_ += elapsed;
    Record& record = records_[alone_];
    if (!alone_begun_) {
      // The others' work in flight takes its slices first: with many sessions, most of a turn.
      alone_begun_ = alone_for_ >= times(kAloneMax, turn_) ||
                     std::none_of(runners.begin(), runners.end(),
                                  [&](const CoRunner& runner) { return runner.id != alone_ && runner.in_flight; });
      if (alone_begun_) {
        alone_for_ = Duration::zero();
        alone_done_ = 0;
      }
    } else if (alone_for_ >= turn_) {
      // The measurement of its turns may have been too low.
      record.rate = std::max(record.rate, static_cast<double>(alone_done_) / seconds(alone_for_));
    }
    const bool here =
        std::any_of(runners.begin(), runners.end(), [&](const CoRunner& runner) { return runner.id == alone_; });
    if (here && record.owed > Duration::zero() && (!alone_begun_ || alone_for_ < times(kAloneMax, turn_))) return;
    alone_ = SessionId{};
    return;
  }
  Duration most = turn_;
  for (const CoRunner& runner : runners) {
    const Record& record = records_[runner.id];
    if (record.owed < most) continue;
    most = record.owed;
    alone_ = runner.id;
    alone_begun_ = false;
    alone_for_ = Duration::zero();
  }
}

void CoRunChoice::give_up(Time now) {
  Verdict& found = verdict();
  found.together = false;
  found.rest = phase_ == Phase::together ? kRestMin : std::clamp(kRestGrowth * found.rest, kRestMin, kRestMax);
  found.trial_at = now + found.rest;
  rest_of_tenants(now);
  take_turns();
  begin_rounds();
}

}  // namespace gpuwire::scheduler
