// Charges a device's time to sessions, and updates caps and floors.
#include <algorithm>

#include "scheduler/policy_state.hpp"

namespace gpuwire::scheduler {
namespace {

// Batch's part of the time that a higher class holds unused, in pauses too short to be given away. With its switches
// this is less than a tenth of the time, so a loop that waits for each kernel keeps nine tenths of its rate alone.
constexpr double kUnusedToBatch = 0.085;

}  // namespace

void Policy::State::charge(DeviceIndex index, const TimeCharge& charge, ChargedFor what) {
  Session& session = *charge.session;
  session.gpu_time += charge.amount;
  TenantOnDevice& there = share(*session.tenant, index);
  there.gpu_time += charge.amount;
  there.cap.spend(charge.amount);
  there.floor.spend(charge.amount);
  if (session.tenant->policy.service_class == ServiceClass::batch) devices[index].batch_floor.spend(charge.amount);
  if (what == ChargedFor::lease) there.deficit -= charge.amount;
  // The tenant did not choose the trial, so it stays in the next round: the deficit takes a slice at most, less than
  // a turn; the rest becomes a debt, paid over several turns. The longest turn bounds the debt of a tenant beside
  // programs that come and go, each of which causes a trial.
  if (what == ChargedFor::trial) {
    const Duration overdrawn = std::min(settings.slice, there.turn / kDebtPartOfCredit);
    const Duration left = std::max(there.deficit - charge.amount, std::min(there.deficit, -overdrawn));
    there.debt = std::min(there.debt + charge.amount - (there.deficit - left), settings.turn_max);
    there.deficit = left;
  }
}

void Policy::State::settle_leases(DeviceIndex index, bool everything) {
  Device& device = devices[index];
  Time until = now;
  bool wanted = false;
  for (Session* session : device.sessions) {
    wanted |= session->wants || session->leased;
    if (!session->leased || !session->gate.open || session->started) continue;
    if (now > session->opened_at + kStartMax) {
      // Its start has not been observed.
      session->started = true;
      session->started_at = session->opened_at + settings.switch_cost;
    } else if (!everything) {
      // The begin of its charge is not known yet.
      until = std::min(until, session->opened_at);
    }
  }
  time_claims.clear();
  for (Session* session : device.sessions) {
    if (!session->started) continue;
    Time to = std::max(session->seen.last_end, session->unused_until);
    if (session->seen.in_flight) to = Time::max();
    else if (session->leased && session->gate.open) to = session->quiet_since() + linger_of(*session);
    if (to > device.time.settled()) time_claims.push_back({session, session->started_at, to});
  }
  for (const TimeCharge& one : device.time.settle_claims(until, time_claims, wanted))
    charge(index, one, ChargedFor::lease);
}

void Policy::State::settle_shared(DeviceIndex index) {
  Device& device = devices[index];
  busy_times.clear();
  for (Session* session : device.sessions) {
    const Duration busy = session->seen.busy - session->busy_charged;
    if (busy > Duration::zero()) busy_times.push_back({session, busy});
  }
  for (const TimeCharge& one : device.time.settle_busy(now, busy_times))
    charge(index, one, device.co_run.tries() ? ChargedFor::trial : ChargedFor::co_run);
}

void Policy::State::settle_budgets() {
  const Duration elapsed = now - budgets_at;
  budgets_at = now;
  for (Device& device : devices) {
    // Batch gets a part of the time that a higher class holds unused, because its pauses are too short to be given away
    // one by one.
    const bool unused = device.holder != nullptr && !device.holder->seen.in_flight && settings.batch_floor > 0;
    // The floor accrues only while a batch session wants the device.
    const bool wanted = std::any_of(device.sessions.begin(), device.sessions.end(), [](const Session* session) {
      return session->tenant->policy.service_class == ServiceClass::batch && session->wants;
    });
    if (wanted)
      device.batch_floor.accrue(elapsed,
                                unused ? std::max(settings.batch_floor, kUnusedToBatch) : settings.batch_floor);
    if (device.batch_floor.left() <= Duration::zero()) device.batch_floor_due = false;
    else if (device.batch_floor.left() >= device.batch_floor.full()) device.batch_floor_due = true;
  }
  for (auto& [id, tenant] : tenants) {
    const ServiceClass of = tenant->policy.service_class;
    if (of != ServiceClass::realtime && of != ServiceClass::scavenger) continue;
    for (TenantOnDevice& there : tenant->devices) {
      there.cap.accrue(elapsed);
      if (there.cap.left() <= Duration::zero()) there.capped = true;
      else if (there.cap.left() >= there.cap.full() / 2) there.capped = false;
      there.floor.accrue(elapsed);
      if (there.floor.left() <= Duration::zero()) there.floor_due = false;
      else if (there.floor.left() >= there.floor.full()) there.floor_due = true;
    }
  }
}

// Busy time is settled only here, when all sessions have just been observed.
void Policy::State::settle() {
  for (DeviceIndex index = 0; index < devices.size(); ++index) {
    if (!devices[index].known) continue;
    if (devices[index].regime == Regime::lease) settle_leases(index, false);
    else settle_shared(index);
  }
  for (auto& [id, session] : sessions) session->busy_charged = session->seen.busy;
  settle_budgets();
}

void Policy::State::update_ranks() {
  const auto batch_is_due = [&](const Device& device) {
    const auto interactive = [&](const Session* other) {
      return other->tenant->policy.service_class == ServiceClass::interactive && active(*other);
    };
    return device.batch_floor_due && std::any_of(device.sessions.begin(), device.sessions.end(), interactive);
  };
  for (auto& [id, session] : sessions) {
    const Tenant& tenant = *session->tenant;
    const auto any = [&](auto holds) {
      return std::any_of(session->devices.begin(), session->devices.end(),
                         [&](DeviceIndex index) { return holds(tenant.devices[index]); });
    };
    switch (tenant.policy.service_class) {
      case ServiceClass::realtime:
        session->rank = tenant.policy.share_max < 1 && any([](const TenantOnDevice& there) { return there.capped; })
                            ? Rank::batch
                            : Rank::realtime;
        break;
      case ServiceClass::interactive: session->rank = Rank::interactive; break;
      case ServiceClass::batch: session->rank = all_devices(*session, batch_is_due) ? Rank::floor : Rank::batch; break;
      case ServiceClass::scavenger:
        session->rank =
            tenant.policy.share_min > 0 && !any([](const TenantOnDevice& there) { return !there.floor_due; })
                ? Rank::floor
                : Rank::scavenger;
        break;
    }
    // A session with overdue work ranks at most as batch until that work has ended.
    if (session->overdue) session->rank = std::max(session->rank, Rank::batch);
  }
}

}  // namespace gpuwire::scheduler
