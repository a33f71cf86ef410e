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
  double share = 0;        // its part of the device by turns, if all sessions always wanted it
  uint64_t completed = 0;  // submissions
  Duration own{};          // time in which no other session held it up
  bool in_flight = false;  // now
  bool counted = true;     // false: it may have work in flight that `completed` never counts
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
    uint64_t completed = 0;  // as of the last call
    Duration own{};
    uint64_t done = 0;  // completed in the window; while turns are measured, in its rated time
    Duration own_in_window{}, rated_in_window{};
    Duration beginning{};       // remaining own time at its begin that is not rated
    uint64_t done_watched = 0;  // completed since the last judgement, also while one session was alone
    double rate = 0;            // completed per second of its own time, by turns; zero: unknown
    double part = 0;            // part of that rate that it reached by turns
    double target = 0;          // part of that rate that it has to reach in any phase
    // Sums of the earlier rounds, which were too close to call.
    uint64_t done_in_turns = 0, done_in_trials = 0;
    Duration own_in_turns{}, rated_in_turns{};
    Duration owed{};  // own time that it lacks of its target
    Time seen{};
  };
  // The result for a set of sessions.
  struct Verdict {
    bool together = false;
    Time trial_at{};  // the earliest time of the next trial
    Duration rest{};  // the pause after the last failed trial
    Time seen{};
  };
  using Members = std::vector<SessionId>;  // sorted
  using Tenants = std::vector<TenantId>;   // sorted, each once
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
  Tenants tenants_;                      // the tenants of members_
  std::map<Members, Verdict> verdicts_;  // at most kVerdictsMax
  // The earliest trial of unmeasured programs of these tenants, after a failed trial of other programs of theirs.
  std::map<Tenants, Time> rests_;
  Duration window_{};            // counted time, without that of higher ranks
  Duration watched_{};           // time since the last judgement, with that of sessions alone
  Duration settles_{};           // in a trial: the remaining time of its disturbed begin
  unsigned rounds_ = 0;          // rounds of turns and a trial that were too close to call
  Duration turns_{}, trials_{};  // the windows of these rounds
  Time since_{};                 // the begin of the phase
  bool bad_ = false;             // the last window side by side was bad
  bool counted_ = true;          // all sessions were counted at the last call
  SessionId alone_{};
  bool alone_begun_ = false;  // no other session has work in flight any more
  Duration alone_for_{};      // since then, or until then
  uint64_t alone_done_ = 0;   // its completions in that time
  CoRunMetrics metrics_;
};

}  // namespace gpuwire::scheduler
