// The policy's insides: tenants, sessions, devices, and the steps of a decision. Private to scheduler/.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "scheduler/budget.hpp"
#include "scheduler/co_run.hpp"
#include "scheduler/device_time.hpp"
#include "scheduler/policy.hpp"
#include "scheduler/steady_time.hpp"

namespace gpuwire::scheduler {

// In which order sessions are served; a tenant's class, but for a `realtime` one above its cap, and for those whose
// floor is due.
enum class Rank : uint8_t { realtime, floor, interactive, batch, scavenger };
inline constexpr unsigned kRanks = 5;

// Where weights differ by much, all turns are shortened down to this part, so that the long ones do not exceed the
// setting.
inline constexpr double kTurnScaleMin = 0.25;
// Of the credit that a turn brings, what goes to pay a debt is no more than this part.
inline constexpr int kDebtPartOfCredit = 2;

// Only what was had by turns is held against a tenant in full.
enum class ChargedFor : uint8_t { lease, trial, co_run };

struct Session;
struct Tenant;

struct TenantOnDevice {
  Duration gpu_time{};
  Duration deficit{};    // credit of the round robin: positive may run, negative has overdrawn
  Duration debt{};       // had in trials beyond what the deficit was charged with: taken from its turns, part by part
  Duration turn{};       // as long as it was when it was given last
  Duration granted{};    // turns in all, while others wanted the device
  bool awake = false;    // has a candidate, in the current decision
  bool wanting = false;  // stands in Device::wanting
  bool slept = true;     // has not wanted the device all the time since it was served last
  SessionId served{};    // the session whose turn it was last
  // How long others wait for its sessions' work to end, until now: little after it did not, more again when it does.
  Duration drain_wait{};
  Time drain_wait_grew_at{};
  Budget cap, floor;
  bool capped = false;
  bool floor_due = false;
  // Of the current decision: whose work is overdue for longest. While others are about, no other session of the tenant
  // is let in.
  const Session* overdue = nullptr;
};

struct Tenant {
  TenantId id{};
  TenantPolicy policy;
  size_t sessions = 0;
  std::vector<TenantOnDevice> devices;  // by DeviceIndex
};

struct Session {
  SessionId id{};
  Tenant* tenant = nullptr;
  std::vector<DeviceIndex> devices;
  Observation seen;  // times are the policy's own
  Rank rank = Rank::batch;

  Gate gate{.open = false};
  Regime regime = Regime::free;  // as last told
  Time opened_at{};
  Time closed_at{};
  Duration open{};  // time that its gate was open, in all
  // Time in which nobody held it up, in all. Held up: it stood at its gate with nothing in flight, or was let in and
  // had not begun yet.
  Duration own{};
  bool held = false;  // since the last decision
  // Nobody counted what it submitted before its gate began to, and some of that may still run: none of it will be seen
  // done.
  bool uncounted = false;
  uint64_t submissions_at_opening = 0;

  // Work that does not end. `drained`: since its gate was closed, all that was in flight has been seen done. `overdue`:
  // it was waited for long enough, or has made no progress for that long; nobody waits for it, and it goes before
  // nobody, until it has drained.
  bool drained = true;
  bool overdue = false;
  Time overdue_at{};
  bool kept_waiting = false;  // since its gate was closed: others were kept for as long as anybody is, and it is known
  Time progress_at{};         // a submission of it was seen done, or nothing was in flight
  // Since when its work makes no progress: that of its oldest, where its worker says.
  Time stands_since() const { return seen.stuck_since != Time{} ? seen.stuck_since : progress_at; }

  // Its gate was opened and it did not come: from then on it wants nothing for a while, which is longer each time.
  unsigned no_shows = 0;
  Time ignored_until{};
  uint64_t ignored_submissions = 0;

  bool leased = false;  // holds all its devices, or waits for their drain with them reserved
  Time leased_at{};
  uint64_t lease_order = 0;
  uint64_t leases = 0;   // in all
  bool started = false;  // work of this opening has begun: from started_at it is charged
  Time started_at{};
  Time unused_until{};  // it held a lease until then, and nothing was seen of it

  // Of the current decision.
  const Session* barred_by = nullptr;  // one of its tenant, whose work does not end: it wants nothing meanwhile
  bool wants = false;                  // has work for the gate, or in flight behind an open one
  bool candidate = false;              // wants, or lingers on its lease
  bool selected = false;               // its gate shall be open

  bool lapsed = false;                    // its lease ended because it was quiet, and it has not wanted anything since
  Duration return_gap = Duration::max();  // how long it was quiet when that happened, of late
  Duration linger{};          // how long it keeps its lease when it is quiet, while only its equals want the device
  unsigned long_pauses = 0;   // in a row, each longer than a gate lingers
  Duration quiet_at_burst{};  // Observation::quiet, when the last burst was seen to have begun
  bool rested = false;  // it came back from a rest, and has not used up a turn since: it needs the device for a moment,
                        // and waits no longer for it

  bool ever_active = false;
  Time active_at{};  // when it last wanted, or had work in flight
  Duration gpu_time{};
  Duration busy_charged{};  // how much of seen.busy has been accounted for

  // Its worker counts what passes every gate but one that is open to a lone session without a bound.
  static bool counts(const Gate& gate, Regime regime) {
    return !gate.open || gate.in_flight_max != Duration::zero() || regime != Regime::free;
  }
  // Whatever it does from now on is counted when it is done.
  bool counted() const { return !uncounted && counts(gate, regime); }
  // Since when it is known to want nothing.
  Time quiet_since() const { return std::max(seen.last_end, opened_at); }
};

// A session that may cut leases of its rank short to come to its own: one with several devices, that gets all of them
// at once or none, or one that has credit and was quiet for a while.
struct LeaseClaim {
  Session* session = nullptr;
  uint64_t order = 0;  // when it was made, in the order of leases and claims
  bool woken = false;
};

struct Device {
  bool known = false;  // has had a session
  Regime regime = Regime::free;
  CoRunChoice co_run;
  Budget batch_floor;
  bool batch_floor_due = false;
  DeviceTime time;
  // The tenant that was active here last, when that was, and when the last of all others was.
  TenantId active{};
  std::optional<Time> active_at, others_active_at;
  std::vector<Session*> sessions;
  std::vector<Tenant*> ring;  // tenants with sessions here, in the order of the round
  std::array<Tenant*, kRanks> current{};
  Session* holder = nullptr;      // whose lease it is
  bool holder_contended = false;  // another tenant of its rank wants the device
  bool taken = false;             // of the current decision: a higher rank uses it
  Session* alone = nullptr;       // of the current decision: while sessions co-run, the others make way for this one
  // Of the current decision and rank.
  std::vector<Tenant*> wanting;  // tenants with candidates that may run here
};

struct Policy::State {
  explicit State(Settings s) : settings(s) {}

  Settings settings;
  SteadyTime clock;
  Time now{};
  Time budgets_at{};
  std::optional<Time> due;  // next_decision() in the policy's own time
  std::map<TenantId, std::unique_ptr<Tenant>> tenants;
  std::map<SessionId, std::unique_ptr<Session>> sessions;
  std::vector<Device> devices;     // by DeviceIndex
  std::vector<LeaseClaim> claims;  // oldest first
  uint64_t order = 0;              // of leases and claims
  std::vector<GateChange> changes;
  std::vector<TimeClaim> time_claims;
  std::vector<BusyTime> busy_times;
  Time regimes_at{};                 // when they are chosen anew
  bool has_realtime_tenant = false;  // of the current decision: among all tenants, also those without a session
  bool news = false;                 // since then a session has become active, or all that it does is counted again

  // policy.cpp
  void tick(Time caller_now);
  void configure(Tenant& tenant);
  Device& device_at(DeviceIndex index);
  const DeviceTime& time_of(DeviceIndex device) const;

  // holds.cpp
  void explain_hold(const Session& session, SessionAccount& account) const;

  // check.cpp
  std::string check() const;

  // account.cpp
  void settle();
  Duration turn_least() const;
  void settle_leases(DeviceIndex index, bool everything);
  void settle_shared(DeviceIndex index);
  void charge(DeviceIndex index, const TimeCharge& charge, ChargedFor what);
  void settle_budgets();
  void update_ranks();

  // wants.cpp
  void update_wants();
  bool wants(Session& session);
  bool lingers(const Session& session) const;
  void note_pause(Session& session, const Observation& seen) const;
  bool pauses_are_long(const Session& session) const;
  bool lower_wants(const Session& session) const;
  Duration linger_of(const Session& session) const;
  void woke(Session& session);
  bool active(const Session& session) const;
  void note_active(Session& session, Time at);

  // progress.cpp
  void watch_progress();
  bool beside_others(DeviceIndex index, const Tenant& tenant) const;
  void bar_siblings();
  bool stalled(const Session& session) const;
  Duration drain_wait_of(const Session& session) const;
  void shorten_drain_wait(const Session& session, Duration by);
  void restore_drain_wait(const Session& session);
  void note_no_show(Session& session);

  // regime_choice.cpp
  void choose_regimes();
  bool choose_co_run(const std::vector<Session*>& group, const std::vector<Session*>& runners,
                     CoRunChoice& choice) const;
  void set_regime(DeviceIndex index, Regime regime);

  // leases.cpp
  bool co_runs(const Session& session) const;
  void find_alone(Rank rank);
  bool makes_way(const Session& session) const;
  void select_co_runners(Rank rank);
  void select();
  void select_leases(Rank rank);
  void keep_or_end_leases(Rank rank);
  void grant_claims(Rank rank);
  void pick_holder(DeviceIndex index, Rank rank);
  void grant(Session& session);
  void end_lease(Session& session);
  Duration turn(DeviceIndex index, const Tenant& tenant, Rank rank) const;
  bool others_want(DeviceIndex index, const Tenant& tenant) const;
  static void pay_debt(TenantOnDevice& there);
  bool in_credit(Tenant& tenant, const Session& session);
  Session* candidate_of(const Device& device, Tenant& tenant, Rank rank);
  bool devices_free(const Session& session) const;
  bool may_run(const Session& session, Rank rank) const;

  // gates.cpp
  void set_gates();
  bool held_up(const Session& session) const;
  Duration drain_wait(const Session& session) const;
  const Session* undrained_for(const Session& session) const;
  bool stays_open(const Session& session) const;
  bool near_higher(const Session& session) const;
  Duration in_flight_max(const Session& session) const;
  void set_gate(Session& session, Gate gate);
  std::optional<Time> next_due() const;

  template <class Holds>
  bool all_devices(const Session& session, Holds holds) const {
    return std::all_of(session.devices.begin(), session.devices.end(),
                       [&](DeviceIndex index) { return holds(devices[index]); });
  }
  TenantOnDevice& share(Tenant& tenant, DeviceIndex index) { return tenant.devices[index]; }
};

}  // namespace gpuwire::scheduler
