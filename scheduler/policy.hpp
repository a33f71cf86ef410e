// Who may give work to which GPU, and for how long: strict classes, deficit round robin in GPU time within a class,
// three regimes.
//
// Pure logic. The GPU scheduler (server/gpu_scheduler/) tells what it sees in the sessions' pages, asks for a decision,
// and writes the decided gates back; the simulation (test/scheduler/) does the same with a model of the hardware. The
// measured constants are from an H200.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

// A session's gate. A closed one lets nothing through; the work in flight runs on.
struct Gate {
  bool open = true;
  // While it is open: how much estimated GPU time may be in flight at once; zero: no bound. A kernel longer than the
  // bound goes alone.
  Duration in_flight_max{};
  bool operator==(const Gate&) const = default;
};

enum class Regime : uint8_t { free, co_run, lease };

struct TenantPolicy {
  ServiceClass service_class = ServiceClass::batch;
  double weight = 1;  // > 0: turns within the class are proportional to it
  double share_max =
      1;  // realtime: the part of a GPU's time, over Settings::cap_window, above which the tenant counts as batch
  double share_min = 0;  // scavenger: the part that it gets even while interactive and batch tenants are busy
};

// What a session's page says. Counters only grow; those of time are counted up to the reading.
struct Observation {
  bool waiting = false;    // a submission stands at the gate (or has just passed it unasked)
  bool in_flight = false;  // submitted work that is not known to be done
  Time first_start{};      // since the gate was opened last: when its first work began on the GPU; zero: not yet
  Time last_end{};         // when the last of its work was seen done; zero: never
  Duration busy{};         // GPU time so far as the worker measures it: sums of first start to drain
  Duration quiet{};     // time so far with nothing in flight and nothing waiting, whether the gate was open or closed
  uint64_t bursts = 0;  // times that it went from nothing in flight to something
  uint64_t submissions = 0;
  uint64_t completions = 0;  // of submissions: seen done
  // Since when the oldest of what is in flight has stood still, whatever else of it ends; zero: not known, or it has
  // not begun.
  Time stuck_since{};
};

struct GateChange {
  SessionId session;
  Gate gate;
  Regime regime;  // of its devices
};

// Why a session's submissions stand at its gate.
enum class Hold : uint8_t {
  none,     // they do not
  turn,     // it is another's turn
  higher,   // a higher class works
  drain,    // its turn has come, and another's work is still in flight
  gang,     // not all of its devices are free yet
  no_show,  // its turn came, and it did not use it
  sibling,  // work of another session of its tenant does not end, and other tenants are about
};

// What `gpuwire top` shows of one session.
struct SessionAccount {
  Regime regime = Regime::free;
  bool holds_lease = false;
  uint64_t leases = 0;  // that it was granted
  Hold hold = Hold::none;
  SessionId held_by{};        // zero: nobody in particular
  Duration gpu_time{};        // charged to it since it began
  Duration deficit{};         // of its tenant on its first device
  Duration drain_wait{};      // how long its equals wait, from the closing of its gate, for its work to end
  Duration drain_wait_max{};  // how long it waits for that of its equals at most
};

// What was found out about running side by side on one device. In parts of what each session does while nobody holds it
// up, summed over all.
struct CoRunMetrics {
  uint64_t trials = 0;
  double turns = 0;         // by turns, as measured last
  double side_by_side = 0;  // as measured last, while all of them ran
  double expected = 0;      // of side by side and, for those who are owed something, the device alone
};

class Policy {
 public:
  struct Settings {
    Duration turn_min = std::chrono::milliseconds(10);        // the smallest turn of a lease
    Duration turn_min_batch = std::chrono::milliseconds(20);  // where only batch and below run
    Duration turn_max =
        std::chrono::milliseconds(200);  // where weights are far apart, turns shrink for this, to a quarter at most
    Duration switch_cost = std::chrono::microseconds(145);
    Duration linger = std::chrono::microseconds(300);  // a gate is held so long after its session has gone quiet
    Duration in_flight_max = std::chrono::microseconds(500);
    Duration in_flight_max_near_higher = std::chrono::microseconds(150);
    Duration regime_interval = std::chrono::milliseconds(10);
    double co_run_load_max = 0.9;
    Duration cap_window = std::chrono::milliseconds(100);
    // So long a lease waits for the work of an equal or higher tenant to end; then the hardware slices between them.
    // And so long work without any progress keeps a lower class away.
    Duration drain_wait_max = std::chrono::milliseconds(200);
    // Of a GPU's time, at least this part goes to batch while interactive tenants keep the GPU.
    double batch_floor = 0.05;
    Duration slice = std::chrono::microseconds(2050);  // of the hardware, between contexts
  };

  explicit Policy(Settings settings);
  ~Policy();

  // Also for a tenant that is known: takes effect from the next decision on.
  void set_tenant(TenantId tenant, const TenantPolicy& policy);
  // Only of a tenant without sessions.
  void remove_tenant(TenantId tenant);

  // `devices`: all of them are leased to the session together, or none. Its gate is open or closed as the next decision
  // says.
  void add_session(SessionId session, TenantId tenant, std::span<const DeviceIndex> devices, Time now);
  // Ended in any way: its leases are free at once. Returns what it was charged in all.
  Duration remove_session(SessionId session, Time now);

  // What the session's page says now; between two decisions at most once for each session.
  void observe(SessionId session, const Observation& seen, Time now);
  // The gates that change. Call it after observations and when next_decision() comes.
  std::span<const GateChange> decide(Time now);
  // Charges what has been observed up to now and decides nothing, for whoever leaves all gates open. Call it after
  // observations of all sessions.
  void settle(Time now);
  // When decide() has to be called again although nothing was observed.
  std::optional<Time> next_decision() const;

  SessionAccount account(SessionId session) const;
  // GPU time charged to the session since it was added, over all its devices.
  Duration gpu_time(SessionId session) const;
  // GPU time charged to the tenant on the device so far, sessions that ended included.
  Duration gpu_time(TenantId tenant, DeviceIndex device) const;
  // The sum of the turns that the tenant was given there while others of its rank wanted the device, too.
  Duration granted(TenantId tenant, DeviceIndex device) const;
  // Switches, and waits for leases, that nobody is charged for.
  Duration system_time(DeviceIndex device) const;
  // Nobody wanted the device. Since its first session: charges of all tenants + system time + idle time = settled time.
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
