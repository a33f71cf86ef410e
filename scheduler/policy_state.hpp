// The policy's internal state: tenants, sessions, devices, and the steps of a decision. Private to scheduler/.
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

// The order in which sessions are served: the tenant's class, except for a `realtime` tenant above its cap and for
// tenants whose floor is due.
enum class Rank : uint8_t { realtime, floor, interactive, batch, scavenger };
inline constexpr unsigned kRanks = 5;

// The hardware starts the first work after a gate's opening within 2.4 ms, whatever else runs.
inline constexpr Duration kStartMax = std::chrono::microseconds(2500);
// About a slice of the hardware: in this time work near its end finishes, and a session that returns within it is
// waited for, because two switches would cost more than others could do meanwhile.
inline constexpr Duration kMoment = std::chrono::milliseconds(2);
// A session that was active within this time may come again at any moment.
inline constexpr Duration kNear = std::chrono::seconds(10);
// At most 1/kDebtPartOfCredit of a turn pays a debt or a trial.
inline constexpr int kDebtPartOfCredit = 2;

// Why time is charged: only time by turns (lease) counts fully against a tenant's deficit.
enum class ChargedFor : uint8_t { lease, trial, co_run };

struct Session;
struct Tenant;

struct TenantOnDevice {
  Duration gpu_time{};
  // Round robin credit: positive: may run; negative: overdrawn.
  Duration deficit{};
  // Time of trials that the deficit was not charged with: taken from its turns in parts.
  Duration debt{};
  // The length of its last turn.
  Duration turn{};
  // The sum of its turns while others wanted the device.
  Duration granted{};
  // Has a candidate in the current decision.
  bool awake = false;
  // Is in Device::wanting.
  bool wanting = false;
  // Has not wanted the device all the time since its last turn.
  bool slept = true;
  // The session of its last turn.
  SessionId served{};
  // How long others wait for its sessions' work to end: short after work that did not end in time, longer again when it
  // does.
  Duration drain_wait{};
  Time drain_wait_grew_at{};
  Budget cap, floor;
  bool capped = false;
  bool floor_due = false;
  // In the current decision: the session whose work is overdue for longest. While other tenants are near, no other
  // session of the tenant is let in.
  const Session* overdue = nullptr;
};

struct Tenant {
  TenantId id{};
  TenantPolicy policy;
  size_t sessions = 0;
  // By DeviceIndex.
  std::vector<TenantOnDevice> devices;
};

struct Session {
  SessionId id{};
  Tenant* tenant = nullptr;
  std::vector<DeviceIndex> devices;
  // With times on the policy's clock.
  Observation seen;
  Rank rank = Rank::batch;

  Gate gate{.open = false};
  // As last reported.
  Regime regime = Regime::free;
  Time opened_at{};
  Time closed_at{};
  // Total time that its gate was open.
  Duration open{};
  // Total time in which no other session held it up. Held up: it waited at its gate without work in flight, or was let
  // in and had not begun yet.
  Duration own{};
  // Since the last decision.
  bool held = false;
  // Work submitted before the gate began to count may still be in flight: its end is never counted.
  bool uncounted = false;
  uint64_t submissions_at_opening = 0;

  // Endless work. `drained`: all work in flight at the gate's closing has ended. `overdue`: others have waited long
  // enough for the work, or it has made no progress for that long; no session waits for it, and it ranks at most as
  // batch, until it has drained.
  bool drained = true;
  bool overdue = false;
  Time overdue_at{};
  // Others have waited for the maximum since its gate was closed, and this is accounted for.
  bool kept_waiting = false;
  // The last time at which a submission ended or no work was in flight.
  Time progress_at{};
  // Since when its work makes no progress: its oldest work, if its worker reports that.
  Time stands_since() const { return seen.stuck_since != Time{} ? seen.stuck_since : progress_at; }

  // After an opening of its gate that it did not use, the session counts as wanting nothing for a while, longer each
  // time.
  Duration ignored_for{};
  Time ignored_until{};
  uint64_t ignored_submissions = 0;

  // Holds all its devices, or waits for their drain with them reserved.
  bool leased = false;
  Time leased_at{};
  uint64_t lease_order = 0;
  // Total number.
  uint64_t leases = 0;
  // Work of this opening has begun; it is charged from started_at on.
  bool started = false;
  Time started_at{};
  // It held a lease without observed work until then.
  Time unused_until{};

  // In the current decision.
  // A session of its tenant with endless work: this one counts as wanting nothing.
  const Session* barred_by = nullptr;
  // Has work at the gate, or in flight behind an open one.
  bool wants = false;
  // Wants, or lingers on its lease.
  bool candidate = false;
  // Its gate shall be open.
  bool selected = false;

  // Its lease ended because it was quiet, and it has not wanted the device since.
  bool lapsed = false;
  // How long it was quiet in recent such cases.
  Duration return_gap = Duration::max();
  // How long it keeps its quiet lease while only sessions of equal rank want the device.
  Duration linger{};
  // Pauses in a row that were longer than a gate lingers.
  unsigned long_pauses = 0;
  // Observation::quiet at the observed begin of the last burst.
  Duration quiet_at_burst{};
  // it returned from a rest and has not used up a turn since: it needs the device for a moment, and waits no longer
  // than that for others' drains
  bool rested = false;

  bool ever_active = false;
  // When it last wanted the device or had work in flight.
  Time active_at{};
  Duration gpu_time{};
  // The accounted part of seen.busy.
  Duration busy_charged{};

  // Whether the worker counts submissions at this gate: not at an unbounded open gate in the regime `free`.
  static bool counts(const Gate& gate, Regime regime) {
    return !gate.open || gate.in_flight_max != Duration::zero() || regime != Regime::free;
  }
  // Whether all its work from now on is counted at its end.
  bool counted() const { return !uncounted && counts(gate, regime); }
  // The time since which it is known to be quiet.
  Time quiet_since() const { return std::max(seen.last_end, opened_at); }
};

// A session's claim, which may end leases of its rank early: the session has several devices, and gets all of them at
// once or none, or it has credit and was quiet for a while.
struct LeaseClaim {
  Session* session = nullptr;
  // Its number in the order of leases and claims.
  uint64_t order = 0;
  bool woken = false;
};

struct Device {
  // It has had a session.
  bool known = false;
  Regime regime = Regime::free;
  CoRunChoice co_run;
  Budget batch_floor;
  bool batch_floor_due = false;
  DeviceTime time;
  // The tenant that was active here last, the time of that, and the last time that any other tenant was.
  TenantId active{};
  std::optional<Time> active_at, others_active_at;
  std::vector<Session*> sessions;
  // Tenants with sessions here, in the order of the round.
  std::vector<Tenant*> ring;
  std::array<Tenant*, kRanks> current{};
  // The session with the lease.
  Session* holder = nullptr;
  // Another tenant of its rank wants the device.
  bool holder_contended = false;
  // In the current decision: a higher rank uses the device.
  bool taken = false;
  // In the current decision: the session for which co-running ones make way.
  Session* alone = nullptr;
  // In the current decision and rank.
  // Tenants with candidates that may run here.
  std::vector<Tenant*> wanting;
};

struct Policy::State {
  explicit State(Settings s) : settings(s) {}

  Settings settings;
  SteadyTime clock;
  Time now{};
  Time budgets_at{};
  // next_decision() in the policy's own time.
  std::optional<Time> due;
  std::map<TenantId, std::unique_ptr<Tenant>> tenants;
  std::map<SessionId, std::unique_ptr<Session>> sessions;
  // By DeviceIndex.
  std::vector<Device> devices;
  // Oldest first.
  std::vector<LeaseClaim> claims;
  // The newest number in the order of leases and claims.
  uint64_t order = 0;
  std::vector<GateChange> changes;
  std::vector<TimeClaim> time_claims;
  std::vector<BusyTime> busy_times;
  // The time of the next choice of regimes.
  Time regimes_at{};
  // In the current decision: among all tenants, also those without a session.
  bool has_realtime_tenant = false;
  // Since the last choice a session has become active or is counted again.
  bool news = false;

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
