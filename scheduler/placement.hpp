// Which GPUs a session gets, and who waits for them in which order. Pure logic; the broker asks.
//
// The order of the queue is class, then the round of the tenant's turn (its nth waiting session: the nth from now),
// then arrival. Who stands further back may overtake who does not fit now, so that a large request does not leave GPUs
// empty; but a lower class never takes from a higher one what that one waits for on a GPU, memory or a session's place
// there, and within a class a request is overtaken so kOvertakenMax times at most. From then on nobody from behind it
// gets that until it has started. A request for several GPUs, a gang, has them kept only from the moment on at which
// none but sessions that have begun after it came are in its way: what one that was there before leaves free would
// stand idle for as long as that one runs. And they are kept for a bounded time only, since nobody can say how long one
// in its way will run: when others have been held back for kKeptForGangFirst they are lent, until those that are in its
// way now have ended, and for as long as they were kept at least. Then they are kept again, twice as long. So a gang
// keeps GPUs idle for half of the time at most, and is not starved: once they are kept for longer than any session
// runs, it is the next.
//
// Who waits for memory is passed by sessions that reserve none: those that hold it now would not end sooner without
// them. That stops when only sessions that have passed it are in its way. A tenant is always given what it is
// guaranteed. Who waits for a session of its own tenant to end (the tenant's limits, or what the tenant itself holds)
// holds up nobody.
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
  uint64_t memory_bytes = 0;           // reserved on each of them from the start to the end; 0: whatever there is
  std::vector<DeviceIndex> allowed;    // empty: all
  unsigned tenant_sessions_max = 0;    // 0: no bound
  std::string user = {};               // who of the tenant; empty: nobody in particular
  unsigned user_sessions_max = 0;      // 0: no bound
  uint64_t user_memory_max_bytes = 0;  // of each GPU, for the user's sessions together; 0: no bound
};

struct Placed {
  std::vector<DeviceIndex> devices;
};  // ascending
struct Queued {
  size_t place = 1;
  size_t waiting = 1;
  std::string why;
  uint64_t round = 0;       // of its tenant's turns
  bool awaits_end = false;  // of any programs on its GPUs; false: its tenant's limits, or its budget, hold it up
};                          // place counts from 1
struct NeverFits {
  std::string reason;
};  // one line for the client
using PlacementAnswer = std::variant<Placed, Queued, NeverFits>;

class Placement {
 public:
  struct Device {
    uint64_t bytes = 0;         // what the ledger may give out on it
    unsigned sessions_max = 0;  // 0: no bound
  };
  explicit Placement(std::vector<Device> devices);
  ~Placement();

  using Bytes = std::function<uint64_t(TenantId, DeviceIndex)>;
  struct Memory {
    Bytes free_now;  // how much could be reserved on the device for this tenant now; without it: what is not promised
    Bytes most;      // how much if nobody used any (its limit, and what is guaranteed to others); without it: all
    // What the tenant's sessions, or one of them, have of the device, used or reserved; without it: their reservations.
    Bytes held;
    std::function<uint64_t(SessionId, DeviceIndex)> held_by;
    Bytes guaranteed;  // without it: nothing is
    // For the reason why somebody waits; without them: none is named. Of all tenants' sessions; and what is guaranteed
    // to others than this tenant.
    std::function<uint64_t(DeviceIndex)> reserved;
    Bytes guaranteed_to_others;
    // Makes what the request wants its own on these devices. False: it cannot be had any more; the request stays in the
    // queue. Without it: only promised here, and never twice. Not asked when no memory is wanted.
    std::function<bool(const PlacementRequest&, const std::vector<DeviceIndex>&)> reserve;
  };
  void set_memory(Memory memory);
  // Why a session more of the tenant may not begin now wherever it would be, beside so many that run of each tenant, in
  // words; empty: it may. Without it: everybody may. Who waits for such a place holds up nobody who may.
  using Places = std::function<std::string(TenantId, const std::map<TenantId, size_t>& running)>;
  void set_places(Places places);
  // Why one that waits is not to begin now, whatever is free, in words; empty: it may. Without it: everybody may. Holds
  // up nobody else.
  using Held = std::function<std::string(SessionId)>;
  void set_held(Held held);
  // Of all devices; sessions that there are go on.
  void set_sessions_max(unsigned sessions_max);

  // It is `now`: what has been kept for gangs for long enough is lent from here on, if start_waiting() is called.
  void pass_time(Time now);

  // The least loaded devices that fit, or a place in the queue, or the reason why it could never be served.
  PlacementAnswer ask(const PlacementRequest& request);
  // What ask() would answer now. Nothing changes, and no memory is reserved.
  PlacementAnswer preview(const PlacementRequest& request) const;
  // One that runs already on these devices, of which there are all; no limit is asked.
  void adopt(SessionId session, TenantId tenant, uint64_t memory_bytes, std::vector<DeviceIndex> devices,
             std::string user = {});
  // Takes it into the queue as one that has waited before, in this round, and does not start it: start_waiting() may.
  // In the order of arrivals, before anybody asks. The answer: it could never be served, and is not in the queue.
  std::optional<NeverFits> wait(const PlacementRequest& request, uint64_t round);
  // Who may start now, in order: call it after leave(), cancel(), memory given back, and reloads. `may`: who could
  // start and must not keeps what it would start on.
  std::vector<std::pair<SessionId, Placed>> start_waiting(const std::function<bool(SessionId)>& may = [](SessionId) {
    return true;
  });
  // In the queue's order.
  std::vector<std::pair<SessionId, Queued>> waiting() const;

  // A waiting one whose tenant's settings have changed: keeps its arrival. The answer: it could never be served now,
  // and is out of the queue.
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
