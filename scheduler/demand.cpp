#include "scheduler/demand.hpp"

#include <algorithm>
#include <cmath>

namespace gpuwire::scheduler {
namespace {

constexpr double kMemorySeconds = 0.1;       // of the session's own time, busy and quiet
constexpr double kKnownSeconds = 0.002;
constexpr double kBurstsMin = 1e-3;          // a burst that never ends has been seen as this many

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void Demand::Sums::add(const Sums& more) {
  const double keep = std::exp(-(more.busy + more.quiet) / kMemorySeconds);
  busy = busy * keep + more.busy;
  quiet = quiet * keep + more.quiet;
  bursts = bursts * keep + more.bursts;
  submissions = submissions * keep + more.submissions;
}

void Demand::observe(const Observation& seen, Time at, RunMode mode) {
  if (seen_ && at > last_at_ && mode != RunMode::unmeasured) {
    const auto more = [](uint64_t now, uint64_t before) { return now > before ? static_cast<double>(now - before) : 0; };
    Sums sums;
    sums.busy = std::max(0.0, seconds(seen.busy - last_.busy));
    sums.quiet = std::max(0.0, seconds(seen.quiet - last_.quiet));
    sums.bursts = more(seen.bursts, last_.bursts);
    sums.submissions = more(seen.submissions, last_.submissions);
    // Together with others, busy is all the time in which it wants the GPU, whoever has it.
    if (mode == RunMode::together) sums.busy = std::max(0.0, seconds(at - last_at_) - sums.quiet);
    (mode == RunMode::together ? together_ : apart_).add(sums);
  }
  if (mode != RunMode::unmeasured) latest_ = mode;
  last_ = seen;
  last_at_ = at;
  seen_ = true;
}

bool Demand::known() const { return apart_.bursts >= 1 && apart_.busy + apart_.quiet >= kKnownSeconds; }

double Demand::busy_seconds() const { return apart_.busy / std::max(apart_.bursts, kBurstsMin); }

double Demand::gap_seconds() const {
  const Sums& sums = latest_ == RunMode::together && together_.bursts >= 1 ? together_ : apart_;
  return sums.quiet / std::max(sums.bursts, kBurstsMin);
}

double Demand::rate_together() const {
  if (together_.busy + together_.quiet < kKnownSeconds || !known()) return 1;
  const double submissions = std::max(together_.submissions, kBurstsMin);
  const double gap = together_.quiet / submissions;
  return (apart_.busy / std::max(apart_.submissions, kBurstsMin) + gap) / (together_.busy / submissions + gap);
}

double Demand::quiet_part() const { return apart_.quiet / std::max(1e-9, apart_.busy + apart_.quiet); }

CoRunForecast forecast(std::span<CoRunner> runners, const Policy::Settings& settings) {
  const double cost = seconds(settings.switch_cost), slice = seconds(settings.slice), linger = seconds(settings.linger);
  const double turn = seconds(settings.turn_min);
  CoRunForecast result;
  // Together, each context gets a slice or less per cycle of all of them; by leases, a session that goes quiet for long gives its lease up, and one
  // that does not keeps it for a turn.
  double cycle = 0, lease_cycle = 0;
  for (const CoRunner& runner : runners) {
    cycle += std::min(runner.busy_seconds, slice) + cost;
    lease_cycle += runner.gap_seconds > linger ? std::min(runner.busy_seconds, turn) + cost + linger : turn;
  }
  bool first = true;
  for (CoRunner& runner : runners) {
    const double period = std::max(1e-9, runner.busy_seconds + runner.gap_seconds);
    const double slices = std::max(1.0, std::ceil(runner.busy_seconds / slice));
    const double together = period / std::max(period + slices * cost, slices * cycle);
    runner.leased = 0.98 * runner.share;
    if (runner.gap_seconds > linger) runner.leased = std::max(runner.leased, period / std::max(period + cost, lease_cycle));
    result.load += (runner.busy_seconds + cost) / period;
    result.together += together;
    result.leased += runner.leased;
    const double ratio = together / std::max(1e-9, runner.leased);
    result.worst = first ? ratio : std::min(result.worst, ratio);
    first = false;
  }
  return result;
}

}  // namespace gpuwire::scheduler
