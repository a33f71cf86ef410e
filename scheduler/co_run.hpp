// Turns, or side by side: tried now and then, and judged by the work that gets done.
//
// Neither busy time nor pauses foretell what two programs do to each other: a worker that looks every 20 us sees one
// long burst where a program launches a kernel every 10 us, and a hiccup makes two bursts of one. So what counts is how
// many submissions of each session are seen done in a second, in parts of what it does while nobody holds it up.
//
// Unequal programs: who gets less side by side than its turns are worth has the devices for itself now and then, for as
// long as makes up for that. Its due is reckoned by its own work, so what others say of theirs takes nothing from it.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "scheduler/policy.hpp"

namespace gpuwire::scheduler {

// A session among those that could run side by side; sums since it began.
struct CoRunner {
  SessionId id{};
  TenantId tenant{};
  double share = 0;        // of the device that turns would give it if all of them always wanted it
  uint64_t completed = 0;  // submissions
  Duration own{};          // time in which nobody held it up
  bool in_flight = false;  // now
  bool counted = true;     // or it may still be doing what is never counted among the completed submissions
};

// Of one group of devices.
class CoRunChoice {
 public:
  // True: they run side by side from now on. Called when the regimes are chosen. `above`: for how long sessions of
  // higher ranks have had the devices so far. `turn`: the smallest one; what is measured, and for how long, goes by it.
  // `near_higher`: sessions of a higher class may come at any moment.
  bool choose(std::span<const CoRunner> runners, Duration above, Duration turn, bool near_higher, Time now);
  // Side by side for a moment, to see what it gives.
  bool tries() const { return phase_ == Phase::trial; }
  // While side by side: the others make way for this one now. Zero: for nobody.
  SessionId alone() const { return phase_ == Phase::together ? alone_ : SessionId{}; }
  // The work in flight is bounded, for the others may have to make way soon.
  bool bounds() const { return phase_ == Phase::trial || (phase_ == Phase::together && mixed_); }
  const CoRunMetrics& figures() const { return metrics_; }

 private:
  enum class Phase : uint8_t { turns, trial, together };
  struct Record {
    uint64_t completed = 0;  // at the last call
    Duration own{};
    uint64_t done = 0;  // in the window; while turns are measured, in its rated time
    Duration own_in_window{}, rated_in_window{};
    Duration beginning{};       // of its own time: so much more is not rated
    uint64_t done_watched = 0;  // since the last judgement, with what was done while somebody was alone
    double rate = 0;            // completed per second of its own time, taking turns; zero: not known
    double part = 0;            // of that rate it reached, taking turns
    double target = 0;          // of that rate it is to reach whatever is chosen
    // Of the rounds before this one, which were too close to call.
    uint64_t done_in_turns = 0, done_in_trials = 0;
    Duration own_in_turns{}, rated_in_turns{};
    Duration owed{};  // of its own time: how far it is behind that
    Time seen{};
  };
  struct Mix {
    double side_by_side = 0;  // of the time
    double total = 0;         // summed parts of all
  };
  // What was found out about some sessions together.
  struct Verdict {
    bool together = false;
    Time trial_at{};    // not before
    Duration rest{};    // after the last trial that failed
    Duration review{};  // how long side by side goes on before turns are measured again
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
  Mix mix(std::span<const CoRunner> runners) const;
  Mix measure_together(std::span<const CoRunner> runners);
  void judge_trial(std::span<const CoRunner> runners, Time now);
  void go_together(std::span<const CoRunner> runners, const Mix& mix, Time now);
  double done_in_all(std::span<const CoRunner> runners) const;
  bool breaks_promise(std::span<const CoRunner> runners) const;
  void watch(std::span<const CoRunner> runners, Time now);
  void choose_alone(std::span<const CoRunner> runners, Duration elapsed);
  void give_up(Time now);
  void take_turns();

  Duration turn_{};
  bool near_higher_ = false;
  Time called_at_{};
  Duration above_{};
  Phase phase_ = Phase::turns;
  std::map<SessionId, Record> records_;
  Members members_;
  Tenants tenants_;                      // whose members_ are
  std::map<Members, Verdict> verdicts_;  // at most kVerdictsMax
  // Programs of these that nobody has measured together are not tried before, after a trial of others of theirs that
  // came to nothing.
  std::map<Tenants, Time> rests_;
  Duration window_{};            // of counted time, without that of higher ranks
  Duration watched_{};           // since the last judgement, with the time that somebody had alone
  Duration settles_{};           // a trial: what is left of the hand-over at its begin
  unsigned rounds_ = 0;          // of turns and a trial, each too close to call
  Duration turns_{}, trials_{};  // windows of these
  Time since_{};                 // of the phase
  unsigned bad_ = 0;             // windows in a row
  bool mixed_ = false;           // somebody is owed time alone
  bool counted_ = true;          // all of them were, at the last call
  SessionId alone_{};
  bool alone_begun_ = false;            // nobody else has anything in flight any more
  Duration alone_for_{}, alone_got_{};  // since then, or until then: the time, and its own time in it
  uint64_t alone_done_ = 0;             // the same
  CoRunMetrics metrics_;
};

}  // namespace gpuwire::scheduler
