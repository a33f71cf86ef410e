// What a session wants of the GPU, measured while it runs, and what that says about running it together with others.
#pragma once

#include <span>

#include "scheduler/policy.hpp"

namespace gpuwire::scheduler {

// How a session ran in the time that an observation speaks of.
enum class RunMode : uint8_t {
  unmeasured, // nothing is counted burst by burst in the free regime
  apart,      // its work had the device for itself whenever it ran
  together,   // its gate was open, and others' work ran too
};

// Means per burst (queue empty, not empty, empty again) over about the last tenth of a second of the session's own time.
class Demand {
 public:
  void observe(const Observation& seen, Time at, RunMode mode);
  // Enough has been seen of it while it ran apart.
  bool known() const;
  double busy_seconds() const;       // of a burst that runs apart
  double gap_seconds() const;        // from one burst's end to the next one's submission
  // While it runs together with others: its rate of submissions as a part of the rate that it has apart, with the pauses that it makes now; 1 when
  // nothing is known.
  double rate_together() const;
  // How much of its own time, apart, it does not use the GPU.
  double quiet_part() const;
  void forget_together() { together_ = {}; }

 private:
  struct Sums {
    double busy = 0, quiet = 0, bursts = 0, submissions = 0;
    void add(const Sums& more);
  };
  Sums apart_, together_;
  Observation last_;
  Time last_at_{};
  bool seen_ = false;
  RunMode latest_ = RunMode::apart;
};

struct CoRunner {
  double busy_seconds = 0;
  double gap_seconds = 0;
  double share = 0;                  // of the device that it would get by leases if all of them always wanted it
  double leased = 0;                 // forecast() says: its rate by leases, in parts of its rate alone
};

// What co-running and leasing would give, in parts of what each has alone.
struct CoRunForecast {
  double load = 0;                   // sum of busy time and of a switch for each burst, per second
  double together = 0;               // sums over all
  double leased = 0;
  double worst = 0;                  // the least, over the sessions, of together / leased
};
CoRunForecast forecast(std::span<CoRunner> runners, const Policy::Settings& settings);

}  // namespace gpuwire::scheduler
