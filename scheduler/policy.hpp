// Policy decides which sessions may submit work to which GPU, and for how long: strict classes, deficit round robin in
// GPU time within a class, three regimes.
//
// Pure logic. The GPU scheduler (server/gpu_scheduler/) passes its observations of the sessions' pages, requests a
// decision, and writes the decided gates back; the simulation (test/scheduler/) does the same with a model of the
// hardware. The measured constants are from an H200.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

// A session's gate. A closed gate holds submissions; work in flight continues.
struct Gate {
  bool open = true;
  // While open: the bound of estimated GPU time in flight; zero: no bound. A kernel longer than the bound runs alone.
  Duration in_flight_max{};
  bool operator==(const Gate&) const = default;
};

enum class Regime : uint8_t { free, co_run, lease };

struct TenantPolicy {
  ServiceClass service_class = ServiceClass::batch;
  // > 0: turns within the class are proportional to it.
  double weight = 1;
  // Realtime: above this part of a GPU's time, over Settings::cap_window, the tenant counts as batch.
  double share_max = 1;
  // Scavenger: its minimum part while interactive and batch tenants are busy.
  double share_min = 0;
};

// The content of a session's page. Counters only grow; times include the moment of the reading.
struct Observation {
  // A submission waits at the gate (or has just passed it by itself).
  bool waiting = false;
  // Submitted work that is not known to be done.
  bool in_flight = false;
  // Start on the GPU of the first work since the gate's last opening; zero: none yet.
  Time first_start{};
  // Observed end of its last work; zero: never.
  Time last_end{};
  // GPU time as the worker measures it: the sum of times from first start to drain.
  Duration busy{};
  // Time without work in flight or waiting, with the gate open or closed.
  Duration quiet{};
  // Transitions from no work in flight to some.
  uint64_t bursts = 0;
  uint64_t submissions = 0;
  // Submissions observed to end.
  uint64_t completions = 0;
  // Since when the oldest work in flight has made no progress, regardless of the rest; zero: unknown, or it has not
  // begun.
  Time stuck_since{};
};

struct GateChange {
  SessionId session;
  Gate gate;
  // The regime of its devices.
  Regime regime;
};

// Why a session's submissions wait at its gate.
enum class Hold : uint8_t {
  none,     // they do not wait
  turn,     // it is another session's turn
  higher,   // a higher class is active
  drain,    // its turn has come, and work of another session is still in flight
  gang,     // not all of its devices are free yet
  no_show,  // its turn came, and it did not use it
  sibling,  // another session of its tenant has endless work, and other tenants are near
};

// The values of a session for `gpuwire top`.
struct SessionAccount {
  Regime regime = Regime::free;
  bool holds_lease = false;
  // The number of granted leases.
  uint64_t leases = 0;
  Hold hold = Hold::none;
  // Zero: no particular session.
  SessionId held_by{};
  // Charged to it since it began.
  Duration gpu_time{};
  // Its tenant's, on its first device.
  Duration deficit{};
  // How long sessions of equal rank wait, from its gate's closing, for its work to end.
  Duration drain_wait{};
  // The longest wait of this session for theirs.
  Duration drain_wait_max{};
};

// Measurements of side by side on one device: each session's rate, relative to its rate while no other session holds it
// up, summed over all.
struct CoRunMetrics {
  uint64_t trials = 0;
  // The last measurement by turns.
  double turns = 0;
  // The last measurement while all of them ran.
  double side_by_side = 0;
  // Expected with side by side and time alone for sessions that are behind.
  double expected = 0;
};

class Policy {
 public:
  struct Settings {
    // The smallest turn of a lease, and the interval at which the regimes are chosen.
    Duration turn_min = std::chrono::milliseconds(10);
    // If only batch and below run.
    Duration turn_min_batch = std::chrono::milliseconds(20);
    // With very different weights, all turns shrink to keep this bound.
    Duration turn_max = std::chrono::milliseconds(200);
    Duration switch_cost = std::chrono::microseconds(145);
    // How long a gate stays open after its session has become quiet.
    Duration linger = std::chrono::microseconds(300);
    Duration in_flight_max = std::chrono::microseconds(500);
    Duration in_flight_max_near_higher = std::chrono::microseconds(150);
    Duration cap_window = std::chrono::milliseconds(100);
    // How long a lease waits for work of equal or higher rank to end; after that the hardware slices between them. Also
    // how long work without progress keeps a lower class away.
    Duration drain_wait_max = std::chrono::milliseconds(200);
    // The minimum part of a GPU's time for batch while interactive tenants hold the GPU.
    double batch_floor = 0.05;
    // The time slice of the hardware between contexts.
    Duration slice = std::chrono::microseconds(2050);
  };

  explicit Policy(Settings settings);
  ~Policy();

  // Adds or changes a tenant; takes effect with the next decision.
  void set_tenant(TenantId tenant, const TenantPolicy& policy);
  // Precondition: the tenant has no sessions.
  void remove_tenant(TenantId tenant);

  // `devices`: the session gets leases on all of them together, or on none. The next decision opens or closes its gate.
  void add_session(SessionId session, TenantId tenant, std::span<const DeviceIndex> devices, Time now);
  // Removes an ended session and frees its leases at once. Returns its charged time in all.
  Duration remove_session(SessionId session, Time now);

  // Takes a reading of the session's page. Precondition: at most one for each session between two decisions.
  void observe(SessionId session, const Observation& seen, Time now);
  // Returns the gates that change. Call it after observations and at the time of next_decision().
  std::span<const GateChange> decide(Time now);
  // Charges the observed use without a decision, for a caller that leaves all gates open. Precondition: all sessions
  // have just been observed.
  void settle(Time now);
  // Returns when decide() has to be called again, even without an observation.
  std::optional<Time> next_decision() const;

  SessionAccount account(SessionId session) const;
  // GPU time charged to the session since it was added, over all its devices.
  Duration gpu_time(SessionId session) const;
  // GPU time charged to the tenant on the device so far, sessions that ended included.
  Duration gpu_time(TenantId tenant, DeviceIndex device) const;
  // The sum of the tenant's turns on the device while others of its rank wanted it, too.
  Duration granted(TenantId tenant, DeviceIndex device) const;
  // Switches and waits for leases, which no session is charged for.
  Duration system_time(DeviceIndex device) const;
  // The time in which no session wanted the device. Since its first session: charges of all tenants + system time +
  // idle time = settled time.
  Duration idle_time(DeviceIndex device) const;
  Duration settled_time(DeviceIndex device) const;
  CoRunMetrics co_run(DeviceIndex device) const;

  // For tests: empty, or the invariant that does not hold.
  std::string check() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gpuwire::scheduler
