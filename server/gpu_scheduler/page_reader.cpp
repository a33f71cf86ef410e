#include "server/gpu_scheduler/page_reader.hpp"

#include <algorithm>

#include "server/gpu_scheduler/limits.hpp"

namespace gpuwire::server {
namespace {

using std::chrono::nanoseconds;

// Returns a duration that never decreases and never exceeds the elapsed time.
nanoseconds grown(nanoseconds before, uint64_t said, nanoseconds most) {
  return std::max(before,
                  nanoseconds(int64_t(std::min<uint64_t>(said, uint64_t(std::max(most, nanoseconds{}).count())))));
}

// Returns zero, or a time between the two.
PageTime inside(int64_t said, PageTime from, PageTime to) {
  return said == 0 ? PageTime{} : std::clamp(PageTime(said), from, std::max(from, to));
}

}  // namespace

bool PageReader::plausible(const Counts& said, uint32_t waiting, uint32_t in_flight, PageTime now) const {
  const auto most = kCountSlack + uint64_t(std::max(now - began_, nanoseconds{}) / kCountEvery);
  auto grows = [&](uint64_t before, uint64_t count) { return count >= before && count <= most; };
  return waiting <= 1 && in_flight <= 1 && grows(counts_.bursts, said.bursts) &&
         grows(counts_.submissions, said.submissions) && grows(counts_.completions, said.completions);
}

PageReader::Reading PageReader::read(const SessionPage& page, uint32_t opening, PageTime opened_at, bool unhindered,
                                     bool unanswered, PageTime now) {
  Reading said;
  scheduler::Observation& seen = said.seen;
  auto relaxed = [](const auto& word) { return word.load(std::memory_order_relaxed); };
  // After this load the worker's writes before its report about work in flight are visible.
  const uint32_t in_flight = page.in_flight.load(std::memory_order_seq_cst), waiting = relaxed(page.waiting);
  const Counts counts{relaxed(page.bursts), relaxed(page.submissions), relaxed(page.completions)};
  damaged_ = damaged_ || !plausible(counts, waiting, in_flight, now);
  said.damaged = damaged_;
  if (!damaged_) {
    counts_ = counts;
    seen.in_flight = in_flight != 0 || unanswered;
    seen.waiting = waiting != 0;
  }
  if (page.started.load(std::memory_order_acquire) == opening)
    seen.first_start = inside(relaxed(page.first_start), opened_at, now);
  last_end_ = std::max(last_end_, inside(relaxed(page.last_end), began_, now));
  seen.last_end = last_end_;
  nanoseconds life = now - began_;
  seen.busy = busy_ = grown(busy_, relaxed(page.busy_ns), life);
  PageTime quiet_since = inside(relaxed(page.quiet_since), began_, now);
  nanoseconds running = quiet_since == PageTime{} ? nanoseconds{} : now - quiet_since;
  quiet_ = grown(quiet_, relaxed(page.quiet_ns), life);
  seen.quiet = quiet_ = std::max(quiet_, std::min(quiet_ + running, life));
  if (unhindered && seen.in_flight) ++uncounted_;
  seen.bursts = counts_.bursts;
  seen.submissions = counts_.submissions + uncounted_;
  seen.completions = counts_.completions;
  said.stuck_since = seen.stuck_since = inside(relaxed(page.stuck_since), began_, now);
  if (!seen.in_flight && !seen.waiting) {
    PageTime idle = inside(relaxed(page.idle_since), began_, now);
    said.idle_since = idle == PageTime{} ? PageTime{} : std::max(idle, last_end_);
  }
  return said;
}

}  // namespace gpuwire::server
