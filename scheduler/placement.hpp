// Placement decides which GPUs a session gets, and orders the queue. Pure logic; the broker calls it.
//
// The order of the queue is class, then the round of the tenant's turn (its nth waiting session: the nth round from
// now), then arrival. A request further back may overtake one that does not fit now, so that a large request does not
// leave GPUs empty. But a lower class never takes the memory or the session's place on a GPU that a higher class waits
// for, and within a class a request is overtaken in this way at most kOvertakenMax times. After that no request from
// behind gets these resources until it has started.
//
// A request for several GPUs, a gang, has them kept only once all sessions that block it have begun after its arrival:
// while an older session runs, GPUs kept for the gang would idle. They are kept for a bounded time, because the run
// times of the blocking sessions are unknown. When others have been held back for kKeptForGangFirst, the GPUs are lent
// until the sessions that block the gang then have ended, and at least for as long as they were kept. Then they are
// kept again, twice as long. So a gang keeps GPUs idle for at most half of the time, and does not starve: once its GPUs
// are kept for longer than any session runs, it starts next.
//
// A request that waits for memory is passed by sessions that reserve none: without them, the holders of the memory
// would not end sooner. That stops when only sessions that have passed the request block it. A tenant always gets its
// guaranteed memory. A request that waits for a session of its own tenant to end (the tenant's limits, or the tenant's
// own use) holds up no other request.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

inline constexpr unsigned kOvertakenMax = 8;
inline constexpr Duration kKeptForGangFirst = std::chrono::minutes(10);  // doubled each time

struct PlacementRequest {
  SessionId session{};
  TenantId tenant{};
  ServiceClass service_class = ServiceClass::batch;
  unsigned gpus = 1;                   // > 0
  uint64_t memory_bytes = 0;           // reserved on each GPU from start to end; 0: no reservation
  std::vector<DeviceIndex> allowed;    // empty: all
  unsigned tenant_sessions_max = 0;    // 0: no bound
  std::string user = {};               // of the tenant; empty: no particular one
  unsigned user_sessions_max = 0;      // 0: no bound
  uint64_t user_memory_max_bytes = 0;  // of each GPU, for the user's sessions together; 0: no bound
};

struct Placed {
  std::vector<DeviceIndex> devices;  // ascending
};
struct Queued {
  size_t place = 1;  // counts from 1
  size_t waiting = 1;
  std::string why;
  uint64_t round = 0;  // of its tenant's turns
  // It waits for ends of any programs on its GPUs; false: its tenant's limits or its budget hold it up.
  bool awaits_end = false;
};
// A waiting session that begins as soon as it can reserve its memory on `gpus` of these devices.
struct MemoryWait {
  SessionId session{};
  unsigned gpus = 1;
  uint64_t memory_bytes = 0;  // on each
  std::vector<DeviceIndex> devices;
};
struct NeverFits {
  std::string reason;  // one line for the client
};
using PlacementAnswer = std::variant<Placed, Queued, NeverFits>;

class Placement {
 public:
  struct Device {
    uint64_t bytes = 0;         // the bytes that sessions may have on it
    unsigned sessions_max = 0;  // 0: no bound
  };
  explicit Placement(std::vector<Device> devices);
  ~Placement();

  using Bytes = std::function<uint64_t(TenantId, DeviceIndex)>;
  struct Memory {
    // The bytes that could be reserved on the device for this tenant now; without it: those not promised.
    Bytes free_now;
    Bytes most;  // the same if no memory were used (its limit, others' guarantees); without it: all
    // The bytes of the device that the tenant's sessions, or one session, have, used or reserved; without it: their
    // reservations.
    Bytes held;
    std::function<uint64_t(SessionId, DeviceIndex)> held_by;
    // Whether the session's memory is with the host: then its reservation is free for others. Without it none is.
    std::function<bool(SessionId)> away;
    Bytes guaranteed;  // without it: no guarantees
    // For the texts of reasons; without them the texts have no such value. The reserved bytes of all tenants' sessions,
    // and the guarantees of all tenants but this one.
    std::function<uint64_t(DeviceIndex)> reserved;
    Bytes guaranteed_to_others;
    // Reserves the request's memory on these devices. False: the memory is not available any more, and the request
    // stays in the queue. Without it the placement only promises the memory, and never twice. Not called for a request
    // without memory.
    std::function<bool(const PlacementRequest&, const std::vector<DeviceIndex>&)> reserve;
  };
  void set_memory(Memory memory);
  // Returns why one more session of the tenant may not begin now on any device, beside each tenant's number of running
  // sessions; empty: it may. Without it all may. A session that waits for such a place holds up no other one.
  using Places = std::function<std::string(TenantId, const std::map<TenantId, size_t>& running)>;
  void set_places(Places places);
  // Returns why a waiting session must not begin now, whatever is free; empty: it may. Without it all may. Such a
  // session holds up no other one.
  using Held = std::function<std::string(SessionId)>;
  void set_held(Held held);
  // Tells whether a device is drained: then no session begins on it. A session that finds too few other devices waits,
  // and holds up no other one. Without it none is. Call start_waiting() after a change.
  using Drained = std::function<bool(DeviceIndex)>;
  void set_drained(Drained drained);
  // Sets the bound of all devices; running sessions continue.
  void set_sessions_max(unsigned sessions_max);

  // Advances the time: GPUs that were kept for gangs for long enough are lent from now on, by start_waiting().
  void pass_time(Time now);

  // Returns the least loaded devices that fit, or a place in the queue, or the reason why the request can never be
  // served.
  PlacementAnswer ask(const PlacementRequest& request);
  // Returns the present answer of ask(), without a change or a reservation.
  PlacementAnswer preview(const PlacementRequest& request) const;
  // Enters a running session; no limit applies. Precondition: all the devices exist.
  void adopt(SessionId session, TenantId tenant, uint64_t memory_bytes, std::vector<DeviceIndex> devices,
             std::string user = {});
  // Queues a session that has waited before, in this round, without starting it: start_waiting() may. Precondition:
  // called in the order of arrivals, before the first ask(). Returns NeverFits, without queueing it, if it can never be
  // served.
  std::optional<NeverFits> wait(const PlacementRequest& request, uint64_t round);
  // Starts the sessions that may start now, and returns them in order. Call it after leave(), cancel(), released
  // memory, and reloads. A session that could start but for `may` keeps the devices on which it would start.
  std::vector<std::pair<SessionId, Placed>> start_waiting(const std::function<bool(SessionId)>& may = [](SessionId) {
    return true;
  });
  // In the queue's order.
  std::vector<std::pair<SessionId, Queued>> waiting() const;
  // The waiting sessions that lack nothing but memory, in the queue's order.
  std::vector<MemoryWait> waiting_for_memory() const;

  // Updates a waiting session whose tenant's settings have changed; it keeps its arrival. Returns NeverFits, and
  // removes it from the queue, if it can never be served now.
  std::optional<NeverFits> revise(const PlacementRequest& request);
  void cancel(SessionId waiting);
  void leave(SessionId running);

  std::string check() const;  // for tests: empty, or the invariant that does not hold

 private:
  struct State;
  explicit Placement(const State& state);

  std::unique_ptr<State> state_;
};

}  // namespace gpuwire::scheduler
