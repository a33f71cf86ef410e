// What a worker's page says, made safe to reckon with.
#pragma once

#include <cstdint>

#include "scheduler/policy.hpp"
#include "server/gate/page.hpp"

namespace gpuwire::server {

// The page is memory of a process that acts for a client, so nothing here believes it: counters never go back and grow no faster than time can, times lie
// between the session's begin and now.
class PageReader {
 public:
  explicit PageReader(PageTime began) : began_(began), last_end_(began) {}

  struct Said {
    scheduler::Observation seen;
    PageTime stuck_since{};  // zero: nothing is in flight without progress
    PageTime idle_since{};   // zero: it is not idle
  };
  // `opening`, `opened_at`: of the gate, as the arbiter has set it. `unhindered`: nothing is counted now, so what is sampled stands in its place.
  // `unanswered`: what is in flight is not known yet.
  Said read(const SessionPage& page, uint32_t opening, PageTime opened_at, bool unhindered, bool unanswered, PageTime now);

 private:
  const PageTime began_;
  PageTime last_end_;
  std::chrono::nanoseconds busy_{}, quiet_{};
  uint64_t bursts_ = 0, submissions_ = 0;
  uint64_t uncounted_ = 0;  // readings that found uncounted work
};

}  // namespace gpuwire::server
