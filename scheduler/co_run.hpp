// CoRunChoice chooses between turns and side by side: it tries side by side from time to time, and judges it by
// completed work.
//
// Neither busy time nor pauses predict how two programs affect each other: a worker that polls every 20 us sees one
// long burst where a program launches a kernel every 10 us, and a hiccup makes two bursts of one. So the measure is
// each session's completed submissions per second, relative to its rate while no other session holds it up.
//
// With unequal programs, a session that gets less side by side than its turns are worth gets the devices alone from
// time to time, for as long as makes up for the difference. Its due is computed from its own work, so other sessions'
// reports take nothing from it.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "scheduler/policy.hpp"

namespace gpuwire::scheduler {

// A session that could run side by side; its sums are since its begin.
struct CoRunner {
  SessionId id{};
  TenantId tenant{};
  // Its part of the device by turns, if all sessions always wanted it.
  double share = 0;
  // Submissions.
  uint64_t completed = 0;
  // Time in which no other session held it up.
  Duration own{};
  // Now.
  bool in_flight = false;
  // False: it may have work in flight that `completed` never counts.
  bool counted = true;
};

// The choice for one group of devices.
class CoRunChoice {
 public:
  // Returns true if they run side by side from now on. Called when the regimes are chosen. `above`: the time so far in
  // which sessions of higher ranks had the devices. `turn`: the smallest turn, the unit of all windows. `near_higher`:
  // sessions of a higher class may come at any moment.
  bool choose(std::span<const CoRunner> runners, Duration above, Duration turn, bool near_higher, Time now);
  // The next call of choose() counts from then on: one session is alone until then.
  void pause() { paused_ = true; }
  // Whether this is a trial of side by side.
  bool tries() const { return phase_ == Phase::trial; }
  // Returns the session for which the others make way now while side by side; zero: none.
  SessionId alone() const { return phase_ == Phase::together ? alone_ : SessionId{}; }
  const CoRunMetrics& figures() const { return metrics_; }

 private:
  enum class Phase : uint8_t { turns, trial, together };
  struct Record {
    // As of the last call.
    uint64_t completed = 0;
    Duration own{};
    // Completed in the window; while turns are measured, in its rated time.
    uint64_t done = 0;
    Duration own_in_window{}, rated_in_window{};
    // Remaining own time at its begin that is not rated.
    Duration beginning{};
    // Completed since the last judgement, also while one session was alone.
    uint64_t done_watched = 0;
    // Completed per second of its own time, by turns; zero: unknown.
    double rate = 0;
    // Part of that rate that it reached by turns.
    double part = 0;
    // Part of that rate that it has to reach in any phase.
    double target = 0;
    // Sums of the earlier rounds, which were too close to call.
    uint64_t done_in_turns = 0, done_in_trials = 0;
    Duration own_in_turns{}, rated_in_turns{};
    // Own time that it lacks of its target.
    Duration owed{};
    Time seen{};
  };
  // The result for a set of sessions.
  struct Verdict {
    bool together = false;
    // The earliest time of the next trial.
    Time trial_at{};
    // The pause after the last failed trial.
    Duration rest{};
    Time seen{};
  };
  // Sorted.
  using Members = std::vector<SessionId>;
  // Sorted, each once.
  using Tenants = std::vector<TenantId>;
  bool update_members(std::span<const CoRunner> runners, Time now);
  void change_members(std::span<const CoRunner> runners, Members members, Time now);
  Verdict& verdict() { return verdicts_[members_]; }
  void count(std::span<const CoRunner> runners, Duration elapsed, bool whole);
  void count_in_window(Record& record, uint64_t done, Duration own) const;
  void rest_of_tenants(Time now);
  void begin_window();
  void measure_turns(std::span<const CoRunner> runners, Time now);
  Duration trial_length(std::span<const CoRunner> runners) const;
  double part_of(const Record& record) const;
  void begin_rounds();
  void poll_again(Time now);
  bool harms_nobody(std::span<const CoRunner> runners) const;
  double expected(std::span<const CoRunner> runners) const;
  void measure_together(std::span<const CoRunner> runners);
  double required() const;
  void judge_trial(std::span<const CoRunner> runners, Time now);
  void go_together(std::span<const CoRunner> runners, Time now);
  double done_in_all(std::span<const CoRunner> runners) const;
  bool breaks_promise(std::span<const CoRunner> runners) const;
  void watch(std::span<const CoRunner> runners, Time now);
  void choose_alone(std::span<const CoRunner> runners, Duration elapsed);
  void give_up(Time now);
  void take_turns();

  Duration turn_{};
  bool near_higher_ = false;
  Time called_at_{};
  bool paused_ = false;
  Duration above_{};
  Phase phase_ = Phase::turns;
  std::map<SessionId, Record> records_;
  Members members_;
  // The tenants of members_.
  Tenants tenants_;
  // At most kVerdictsMax.
  std::map<Members, Verdict> verdicts_;
  // The earliest trial of unmeasured programs of these tenants, after a failed trial of other programs of theirs.
  std::map<Tenants, Time> rests_;
  // Counted time, without that of higher ranks.
  Duration window_{};
  // Time since the last judgement, with that of sessions alone.
  Duration watched_{};
  // In a trial: the remaining time of its disturbed begin.
  Duration settles_{};
  // Rounds of turns and a trial that were too close to call.
  unsigned rounds_ = 0;
  // The windows of these rounds.
  Duration turns_{}, trials_{};
  // The begin of the phase.
  Time since_{};
  // The last window side by side was bad.
  bool bad_ = false;
  // All sessions were counted at the last call.
  bool counted_ = true;
  SessionId alone_{};
  // No other session has work in flight any more.
  bool alone_begun_ = false;
  // Since then, or until then.
  Duration alone_for_{};
  // Its completions in that time.
  uint64_t alone_done_ = 0;
  CoRunMetrics metrics_;
};

}  // namespace gpuwire::scheduler
