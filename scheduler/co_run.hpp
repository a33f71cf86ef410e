// Turns, or side by side: tried now and then, and judged by the work that gets done.
//
// Neither busy time nor pauses foretell what two programs do to each other: a worker that looks every 20 us sees one long burst where a program launches a
// kernel every 10 us, and a hiccup makes two bursts of one. So what counts is how many submissions of each session are seen done in a second.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

// A session among those that could run side by side; sums since it began.
struct CoRunner {
  SessionId id{};
  double share = 0;        // of the device that turns would give it if all of them always wanted it
  uint64_t completed = 0;  // submissions
  Duration open{};         // time that its gate was open
};

// Of one group of devices.
class CoRunChoice {
 public:
  // True: they run side by side from now on. Called when the regimes are chosen. `above`: for how long sessions of higher ranks have had the devices so far.
  // `turn`: the smallest one; what is measured, and for how long, goes by it.
  bool choose(std::span<const CoRunner> runners, Duration above, Duration turn, Time now);
  // Side by side for a moment, to see what it gives.
  bool tries() const { return phase_ == Phase::trial; }

 private:
  enum class Phase : uint8_t { turns, trial, together };
  struct Record {
    uint64_t completed = 0;  // when the window began
    Duration open{};
    double rate = 0;         // completed per second of its open gate, taking turns; zero: not known
    double part = 0;         // of the devices' time that it had, taking turns
    Time seen{};
  };
  // In parts of what each does while the device is its own.
  struct Rates {
    double together = 0;     // sums over all
    double turns = 0;
    double worst = 0;        // the least, over the sessions: what it gets together, in parts of what its turns give it
  };
  void update_members(std::span<const CoRunner> runners, Duration above, Time now);
  void resume(std::span<const CoRunner> runners, Duration above, Time now);
  void begin_window(std::span<const CoRunner> runners, Duration above, Time now);
  void measure_turns(std::span<const CoRunner> runners, Duration above, Time now);
  bool countable(std::span<const CoRunner> runners);
  Rates measure_together(std::span<const CoRunner> runners);
  void judge_trial(std::span<const CoRunner> runners, Duration above, Time now);
  void watch(std::span<const CoRunner> runners, Duration above, Time now);
  void go_together(std::span<const CoRunner> runners, Duration above, Time now);
  void give_up(std::span<const CoRunner> runners, Duration above, Time now);

  Duration turn_{};
  Time called_at_{};
  Phase phase_ = Phase::turns;
  std::map<SessionId, Record> records_;
  std::vector<SessionId> members_;  // sorted
  Time window_at_{};
  Duration window_above_{};
  Time since_{};                    // of the phase
  bool measuring_ = false;          // a trial: past the hand-over at its begin
  unsigned bad_ = 0;                // windows in a row
  Time trial_at_{};                 // not before
  Duration rest_{};                 // after the last trial that failed
  Duration review_{};               // how long side by side goes on before turns are measured again
};

}  // namespace gpuwire::scheduler
