// WorkerStarts decides which pool may start a worker now, and which session gets a ready one: tenants in turn, over all
// pools.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "scheduler/types.hpp"
#include "server/broker/limits.hpp"

namespace gpuwire::server {

// It is pure: it knows neither processes nor a clock. The least recently served tenant comes first, and of its sessions
// the longest waiting one. Between two workers for one tenant every other tenant that waits in the same pool gets one,
// however many sessions the first one has.
class WorkerStarts {
 public:
  using SessionId = scheduler::SessionId;
  using Pool = uint32_t;
  using Time = std::chrono::steady_clock::time_point;
  struct Limits {
    size_t parallel_max = kParallelStartsMax;
    // A start that takes longer (a device that hangs) stops holding up the others: it does not count to parallel_max
    // any more.
    std::chrono::milliseconds hold{kStartHoldMs};
    // The part of parallel_max that prewarmed workers leave to sessions that may come while they start; one prewarmed
    // worker may start in any case.
    size_t for_sessions = kStartsForSessions;
  };
  WorkerStarts() = default;
  explicit WorkerStarts(Limits limits) : limits_(limits) {}

  // The session waits for a worker of the pool; `first`: before the others of its tenant.
  void wait(Pool pool, SessionId session, std::string tenant, bool first = false);
  // The session waits no more.
  void leave(SessionId session);
  // Returns the session that gets a ready worker of the pool: it waits no more, and its tenant is the one served last.
  std::optional<SessionId> take(Pool pool);

  // `open`: the pool may start workers now. `prewarmed`: the number that it lacks beside those for sessions.
  void wish(Pool pool, bool open, size_t prewarmed);
  void begun(Pool pool, pid_t worker, Time now);
  // The worker has become ready, or has ended.
  void settled(pid_t worker);
  void forget(Pool pool);

  // Returns the pool that has to start a worker now: first for a waiting session for which none starts, in the order of
  // take(), and then for prewarmed workers. Nothing: none is needed, or parallel_max are starting.
  std::optional<Pool> next(Time now) const;
  // Returns when a start in progress stops holding up the others; nothing: none does.
  std::optional<Time> next_change(Time now) const;
  size_t in_progress() const { return starts_.size(); }

 private:
  struct Waiting {
    SessionId session;
    std::string tenant;
    Pool pool;
  };
  struct Start {
    pid_t worker;
    Pool pool;
    Time since;
  };
  struct Wish {
    bool open = false;
    size_t prewarmed = 0;
  };
  using Turns = std::map<std::string, uint64_t>;
  // Returns the first element, in the order of arrival, whose tenant was served least recently.
  template <class Iterator>
  static Iterator least_recent(Iterator begin, Iterator end, const Turns& turns);

  Limits limits_;
  // In the order of arrival; bounded by the admission.
  std::list<Waiting> waiting_;
  std::vector<Start> starts_;
  std::map<Pool, Wish> wishes_;
  // The turns of tenants that were served while any session waited: the higher, the later.
  Turns turns_;
  uint64_t last_turn_ = 0;
};

}  // namespace gpuwire::server
