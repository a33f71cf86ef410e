#include "scheduler/co_run.hpp"

#include <algorithm>

namespace gpuwire::scheduler {
namespace {

// In turns. Taking turns is measured for a round of two sessions and more, until everybody has done enough to be counted, or nobody will.
constexpr double kMeasureMin = 3.8, kMeasureMax = 50;
constexpr uint64_t kCountMin = 6;
// A trial: what its begin disturbs, how soon it is broken off when it goes badly, how long it is looked at.
constexpr double kTrialSettle = 0.8, kTrialGlance = 0.9, kTrial = 1.9;
constexpr double kTrialHopeless = 0.6;
constexpr double kWatch = 3.8;
constexpr int kPauseMax = 3;  // between two choices
constexpr unsigned kBadMax = 2;
// How much better side by side must be to begin, all together, and how little worse for anybody; and how much may be lost again while it lasts.
constexpr double kBegin = 1.03, kBeginWorst = 0.9, kStay = 0.97, kStayWorst = 0.8;
constexpr Duration kRestMin = std::chrono::milliseconds(500), kRestMax = std::chrono::seconds(10);
constexpr int kRestGrowth = 4;
constexpr Duration kReviewMin = std::chrono::seconds(4), kReviewMax = std::chrono::seconds(10);
constexpr Duration kLasted = std::chrono::seconds(2);
constexpr double kUnbounded = 1e9;
constexpr Duration kRecordKept = std::chrono::seconds(30);  // of a session that is not there

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

bool CoRunChoice::choose(std::span<const CoRunner> runners, Duration above, Duration turn, Time now) {
  turn_ = turn;
  const bool resumed = now - called_at_ > kPauseMax * turn;
  called_at_ = now;
  update_members(runners, above, now);
  if (resumed) resume(runners, above, now);
  switch (phase_) {
    case Phase::turns: measure_turns(runners, above, now); break;
    case Phase::trial: judge_trial(runners, above, now); break;
    case Phase::together: watch(runners, above, now); break;
  }
  return phase_ != Phase::turns;
}

// Who leaves changes nothing for those who run side by side, nor who comes back; somebody new is measured by turns first.
void CoRunChoice::update_members(std::span<const CoRunner> runners, Duration above, Time now) {
  std::vector<SessionId> members;
  for (const CoRunner& runner : runners) members.push_back(runner.id);
  std::sort(members.begin(), members.end());
  std::erase_if(records_, [&](const auto& entry) { return now - entry.second.seen > kRecordKept; });
  const bool changed = members != members_;
  bool stranger = false;
  for (const CoRunner& runner : runners) {
    Record& record = records_[runner.id];
    record.seen = now;
    stranger |= record.rate <= 0;
  }
  members_ = std::move(members);
  if (!changed) return;
  if (phase_ == Phase::trial || (phase_ == Phase::together && stranger)) {
    phase_ = Phase::turns;
    trial_at_ = now;
  }
  bad_ = 0;
  begin_window(runners, above, now);
}

// One of them has been alone meanwhile: what was done in that time was not counted.
void CoRunChoice::resume(std::span<const CoRunner> runners, Duration above, Time now) {
  if (phase_ == Phase::trial) phase_ = Phase::turns;
  bad_ = 0;
  begin_window(runners, above, now);
}

void CoRunChoice::begin_window(std::span<const CoRunner> runners, Duration above, Time now) {
  for (const CoRunner& runner : runners) {
    Record& record = records_[runner.id];
    record.completed = runner.completed;
    record.open = runner.open;
  }
  window_at_ = now;
  window_above_ = above;
}

void CoRunChoice::measure_turns(std::span<const CoRunner> runners, Duration above, Time now) {
  const Duration had = now - window_at_ - (above - window_above_);
  if (had < kMeasureMin * turn_) return;
  const auto enough = [&](const CoRunner& runner) {
    const Record& record = records_[runner.id];
    return runner.completed >= record.completed + kCountMin && runner.open > record.open;
  };
  if (std::all_of(runners.begin(), runners.end(), enough)) {
    for (const CoRunner& runner : runners) {
      Record& record = records_[runner.id];
      const double open = seconds(runner.open - record.open);
      record.rate = static_cast<double>(runner.completed - record.completed) / open;
      record.part = std::min(1.0, open / seconds(had));
    }
    if (now >= trial_at_ && countable(runners)) {
      phase_ = Phase::trial;
      since_ = now;
      measuring_ = false;
      return;
    }
  }
  if (had > kMeasureMax * turn_) begin_window(runners, above, now);
}

// Would a trial see enough of everybody?
bool CoRunChoice::countable(std::span<const CoRunner> runners) {
  return std::all_of(runners.begin(), runners.end(), [&](const CoRunner& runner) {
    const Record& record = records_[runner.id];
    return record.rate * std::min(record.part, runner.share) * kTrial * seconds(turn_) >= static_cast<double>(kCountMin);
  });
}

CoRunChoice::Rates CoRunChoice::measure_together(std::span<const CoRunner> runners) {
  Rates rates{.together = 0, .turns = 0, .worst = kUnbounded};
  for (const CoRunner& runner : runners) {
    const Record& record = records_[runner.id];
    const double open = seconds(runner.open - record.open);
    const double fair = std::min(record.part, runner.share);
    rates.turns += record.part;
    if (open <= 0 || record.rate <= 0) {
      rates.worst = 0;
      continue;
    }
    const double part = static_cast<double>(runner.completed - record.completed) / open / record.rate;
    rates.together += part;
    if (fair > 0) rates.worst = std::min(rates.worst, part / fair);
  }
  return rates;
}

void CoRunChoice::judge_trial(std::span<const CoRunner> runners, Duration above, Time now) {
  if (!measuring_) {
    if (now - since_ < kTrialSettle * turn_) return;
    measuring_ = true;
    begin_window(runners, above, now);
    return;
  }
  const Duration window = now - window_at_;
  const Rates rates = measure_together(runners);
  const bool hopeless = window >= kTrialGlance * turn_ && rates.together < kTrialHopeless * rates.turns;
  if (!hopeless && window < kTrial * turn_) return;
  const bool pays = rates.together >= kBegin * rates.turns && rates.worst >= kBeginWorst;
  if (pays) go_together(runners, above, now);
  else give_up(runners, above, now);
}

void CoRunChoice::go_together(std::span<const CoRunner> runners, Duration above, Time now) {
  phase_ = Phase::together;
  since_ = now;
  bad_ = 0;
  review_ = std::clamp(2 * review_, kReviewMin, kReviewMax);
  begin_window(runners, above, now);
}

void CoRunChoice::watch(std::span<const CoRunner> runners, Duration above, Time now) {
  if (now - window_at_ < kWatch * turn_) return;
  const Rates rates = measure_together(runners);
  const bool bad = rates.together < kStay * rates.turns || rates.worst < kStayWorst;
  bad_ = bad ? bad_ + 1 : 0;
  if (bad_ >= kBadMax) return give_up(runners, above, now);
  begin_window(runners, above, now);
  if (now - since_ < review_) return;
  // What turns would give was measured long ago.
  phase_ = Phase::turns;
  trial_at_ = now;
}

void CoRunChoice::give_up(std::span<const CoRunner> runners, Duration above, Time now) {
  const bool lasted = phase_ == Phase::together && now - since_ > kLasted;
  rest_ = lasted ? kRestMin : std::clamp(kRestGrowth * rest_, kRestMin, kRestMax);
  trial_at_ = now + rest_;
  review_ = Duration{};
  phase_ = Phase::turns;
  begin_window(runners, above, now);
}

}  // namespace gpuwire::scheduler
