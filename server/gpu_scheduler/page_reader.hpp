// The content of a worker's page, checked for use in calculations.
#pragma once

#include <cstdint>

#include "scheduler/policy.hpp"
#include "server/gate/page/session_page.hpp"

namespace gpuwire::server {

// The page is memory of a process that acts for a client, so the reader does not trust it: it copies and checks each
// word once. Durations never decrease and grow no faster than time; times lie between the session's beginning and now.
// Decreasing counters, impossibly fast counters and flags that are neither 0 nor 1 are no honest mistakes.
class PageReader {
 public:
  explicit PageReader(PageTime began) : began_(began), last_end_(began) {}

  struct Reading {
    scheduler::Observation seen;
    // Zero: nothing is in flight without progress.
    PageTime stuck_since{};
    // Zero: it is not idle.
    PageTime idle_since{};
    // It has, or had, content that no worker of this build writes; it is ignored from then on.
    bool damaged = false;
  };
  // `opening`, `opened_at`: of the gate, as the GPU scheduler has set it. `unhindered`: the worker counts nothing now,
  // so the reader uses samples. `unanswered`: the work in flight is not known yet.
  Reading read(const SessionPage& page, uint32_t opening, PageTime opened_at, bool unhindered, bool unanswered,
               PageTime now);

 private:
  struct Counts {
    uint64_t bursts = 0, submissions = 0, completions = 0;
  };
  bool plausible(const Counts& said, uint32_t waiting, uint32_t in_flight, PageTime now) const;

  const PageTime began_;
  PageTime last_end_;
  std::chrono::nanoseconds busy_{}, quiet_{};
  Counts counts_;
  bool damaged_ = false;
  // Readings that found uncounted work.
  uint64_t uncounted_ = 0;
};

}  // namespace gpuwire::server
