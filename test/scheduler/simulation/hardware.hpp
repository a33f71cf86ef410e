// One GPU as several contexts see it, with the times measured on an H200: slices, switches, and a context that loses
// the GPU when its queue is empty.
#pragma once

#include <optional>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler::test {

struct HardwareTimes {
  Duration slice = std::chrono::microseconds(2050);
  Duration switch_from_idle =
      std::chrono::microseconds(145);  // submission to first instruction, after another context has run
  Duration switch_from_busy = std::chrono::microseconds(230);
  Duration switch_from_lone =
      std::chrono::microseconds(190);             // from a kernel that has run for a slice and has nothing behind it
  Duration start = std::chrono::microseconds(7);  // the same, in the context that ran last
};

struct HardwareEvent {
  enum What : uint8_t { began, emptied } what;
  unsigned context = 0;
  Time at{};
};

class HardwareDevice {
 public:
  static constexpr Duration kEndless = Duration(int64_t{1} << 60);

  unsigned add_context();
  void remove_context(unsigned context, Time now);
  // Executes up to `now` (not back) and appends what happened.
  void advance(Time now, std::vector<HardwareEvent>& events);
  // Call advance(now) before these. `stretch` >= 1: how much longer the work takes than when enough of it is queued.
  void give(unsigned context, Duration work, double stretch, Time now);
  // Nothing more of the context's work than this remains. `lone_since`: it is one kernel with nothing behind it, which
  // began then. Such a kernel makes way at once for a newcomer when it has run for a slice without a pause, also where
  // it was interrupted before.
  void keep(unsigned context, Duration work, std::optional<Time> lone_since);
  // Takes all of it away, unless the context runs; says whether it did.
  bool drop(unsigned context);
  bool runs(unsigned context) const { return phase_ == Phase::running && current_ == context; }
  Duration ready(unsigned context) const { return contexts_[context].ready; }
  Duration executed(unsigned context) const { return contexts_[context].executed; }  // GPU time in all
  double progress(unsigned context) const { return contexts_[context].progress; }    // seconds of work done
  Duration busy() const { return busy_; }
  // When something will happen without anybody's doing.
  std::optional<Time> next_event() const;

 private:
  enum class Phase : uint8_t { idle, switching, running };
  struct Context {
    Duration ready{};
    Duration executed{};
    double progress = 0;
    double stretch = 1;
    std::optional<Time> lone_since;
  };
  std::optional<unsigned> after(unsigned context) const;  // the next one with work, round robin; not itself
  void leave(Time at, Duration cost);
  bool lone_for_a_slice() const;
  Time slice_end() const;

  HardwareTimes times_;
  std::vector<Context> contexts_;
  Phase phase_ = Phase::idle;
  unsigned current_ = 0;  // switched to, running, or last run
  bool ever_ran_ = false;
  Time at_{};  // executed so far; while switching: when it is done
  Time slice_begun_{};
  Duration busy_{};
};

}  // namespace gpuwire::scheduler::test
