// Assigns the leases: strict ranks, deficit round robin within a rank, gangs all or nothing.
#include <algorithm>

#include "scheduler/policy_state.hpp"

namespace gpuwire::scheduler {
namespace {

// A session that wakes up with credit left from its turn does not interrupt a holder within this time.
constexpr Duration kUndisturbed = std::chrono::milliseconds(4);

}  // namespace

bool Policy::State::may_run(const Session& session, Rank rank) const {
  if (!session.candidate || session.rank != rank) return false;
  return all_devices(session, [](const Device& device) { return !device.taken && device.regime != Regime::co_run; });
}

bool Policy::State::others_want(DeviceIndex index, const Tenant& tenant) const {
  const auto& wanting = devices[index].wanting;
  return std::any_of(wanting.begin(), wanting.end(), [&](const Tenant* other) { return other != &tenant; });
}

Duration Policy::State::turn(DeviceIndex index, const Tenant& tenant, Rank rank) const {
  const Device& device = devices[index];
  const auto above_batch = [&](const Session* session) { return session->rank < Rank::batch && active(*session); };
  const bool only_batch =
      rank >= Rank::batch && std::none_of(device.sessions.begin(), device.sessions.end(), above_batch);
  double least = tenant.policy.weight, most = least;
  for (const Tenant* other : device.wanting) {
    least = std::min(least, other->policy.weight);
    most = std::max(most, other->policy.weight);
  }
  const double smallest = static_cast<double>((only_batch ? settings.turn_min_batch : settings.turn_min).count());
  const double scale = std::min(1.0, static_cast<double>(settings.turn_max.count()) / (smallest * most / least));
  return Duration(static_cast<int64_t>(scale * smallest * tenant.policy.weight / least));
}

// Pays the debt from a part of the turn's new credit, so that the tenant is still served in this round.
void Policy::State::pay_debt(TenantOnDevice& there) {
  const Duration paid = std::min(there.debt, std::max(there.deficit, Duration::zero()) / kDebtPartOfCredit);
  there.debt -= paid;
  there.deficit -= paid;
}

bool Policy::State::in_credit(Tenant& tenant, const Session& session) {
  for (const DeviceIndex index : session.devices) {
    TenantOnDevice& there = share(tenant, index);
    if (there.deficit > Duration::zero()) continue;
    if (others_want(index, tenant)) return false;
    // A lone tenant's rounds pass at once, and its debt is void.
    there.debt = Duration::zero();
    there.turn = turn(index, tenant, session.rank);
    there.deficit += there.turn * (-there.deficit / there.turn + 1);
  }
  return true;
}

void Policy::State::end_lease(Session& session) {
  if (session.leased && session.gate.open && !session.started && !session.seen.in_flight) {
    // The session held the device without observed work: the held time is charged all the same.
    session.started = true;
    session.started_at = std::max(session.opened_at, session.leased_at) + settings.switch_cost;
    session.unused_until = now;
  }
  session.leased = false;
  for (const DeviceIndex index : session.devices) {
    if (devices[index].holder == &session) devices[index].holder = nullptr;
  }
}

void Policy::State::grant(Session& session) {
  session.leased = true;
  session.leased_at = now;
  session.lease_order = ++order;
  ++session.leases;
  if (session.gate.open && session.seen.in_flight && !session.started) {
    session.started = true;
    session.started_at = now;
  }
  for (const DeviceIndex index : session.devices) {
    devices[index].holder = &session;
    share(*session.tenant, index).served = session.id;
  }
  std::erase_if(claims, [&](const LeaseClaim& claim) { return claim.session == &session; });
}

void Policy::State::keep_or_end_leases(Rank rank) {
  for (auto& [id, session] : sessions) {
    if (!session->leased || session->rank != rank) continue;
    Tenant& tenant = *session->tenant;
    bool keep = may_run(*session, rank) && in_credit(tenant, *session);
    const DeviceIndex first = session->devices.front();
    if (keep && now - session->leased_at >= settings.turn_min &&
        tenant.devices[first].deficit >= settings.turn_min / 2) {
      // Sessions of one tenant take turns within its turn, unless the rest of the turn is not worth a switch.
      const Device& device = devices[first];
      keep = std::none_of(device.sessions.begin(), device.sessions.end(), [&](const Session* other) {
        return other != session.get() && other->tenant == session->tenant && !other->leased && may_run(*other, rank);
      });
    }
    if (keep) continue;
    session->lapsed = !session->wants;
    if (session->wants && session->candidate && session->rank == rank) session->rested = false;
    end_lease(*session);
  }
}

void Policy::State::grant_claims(Rank rank) {
  std::erase_if(claims, [&](const LeaseClaim& claim) {
    Session& session = *claim.session;
    return session.rank == rank && (session.leased || !may_run(session, rank) || !in_credit(*session.tenant, session));
  });
  const std::vector<LeaseClaim> pending = claims;
  for (const LeaseClaim& claim : pending) {
    Session& claimer = *claim.session;
    if (claimer.rank != rank) continue;
    const bool ready = all_devices(claimer, [&](const Device& device) {
      const Session* holder = device.holder;
      if (holder == nullptr) return true;
      if (claim.woken) return holder->tenant != claimer.tenant && now - holder->leased_at >= kUndisturbed;
      // A holder that was granted a device after a gang's claim has the device until the gang can begin.
      return holder->lease_order > claim.order;
    });
    if (!ready) continue;
    for (const DeviceIndex index : claimer.devices) {
      if (devices[index].holder != nullptr) end_lease(*devices[index].holder);
    }
    grant(claimer);
  }
}

Session* Policy::State::candidate_of(const Device& device, Tenant& tenant, Rank rank) {
  const auto index = static_cast<DeviceIndex>(&device - devices.data());
  const auto& all = device.sessions;
  const auto served =
      std::find_if(all.begin(), all.end(), [&](const Session* s) { return s->id == tenant.devices[index].served; });
  const size_t start = served == all.end() ? 0 : static_cast<size_t>(served - all.begin()) + 1;
  for (size_t i = 0; i < all.size(); ++i) {
    Session* session = all[(start + i) % all.size()];
    if (session->tenant != &tenant || session->leased || !may_run(*session, rank)) continue;
    if (!in_credit(tenant, *session)) continue;
    if (devices_free(*session)) return session;
    const bool claimed = std::any_of(claims.begin(), claims.end(),
                                     [&](const LeaseClaim& claim) { return claim.session == session && !claim.woken; });
    if (!claimed) claims.push_back({session, ++order, false});
  }
  return nullptr;
}

bool Policy::State::devices_free(const Session& session) const {
  return all_devices(session, [](const Device& device) { return device.holder == nullptr; });
}

void Policy::State::pick_holder(DeviceIndex index, Rank rank) {
  Device& device = devices[index];
  Tenant* current = device.current[static_cast<unsigned>(rank)];
  const auto try_tenant = [&](Tenant& tenant) {
    if (share(tenant, index).deficit <= Duration::zero()) return false;
    Session* session = candidate_of(device, tenant, rank);
    if (session == nullptr) return false;
    // On its other devices, and where a claim is granted, the round keeps its position: an interrupted session
    // continues afterwards.
    device.current[static_cast<unsigned>(rank)] = &tenant;
    grant(*session);
    return true;
  };
  // The tenant's turn is not over: it was interrupted, or another of its sessions follows.
  if (current != nullptr && share(*current, index).wanting && try_tenant(*current)) return;

  const auto place = std::find(device.ring.begin(), device.ring.end(), current);
  const size_t start = place == device.ring.end() ? 0 : static_cast<size_t>(place - device.ring.begin()) + 1;
  // Each pass past the first brings at least one more tenant into credit.
  for (size_t pass = 0; pass <= device.wanting.size(); ++pass) {
    for (size_t i = 0; i < device.ring.size(); ++i) {
      Tenant& tenant = *device.ring[(start + i) % device.ring.size()];
      TenantOnDevice& there = share(tenant, index);
      if (!there.wanting) continue;
      const Duration one = there.turn = turn(index, tenant, rank);
      // A tenant that slept begins with one turn at most; one that was interrupted while it wanted more keeps the rest.
      there.deficit = std::min(there.deficit + one, there.slept ? one : 2 * one);
      pay_debt(there);
      if (others_want(index, tenant)) there.granted += one;
      there.slept = false;
      if (try_tenant(tenant)) return;
    }
    // All have overdrawn: rounds in which no tenant runs pass at once.
    int64_t rounds = INT64_MAX;
    for (const Tenant* tenant : device.wanting) {
      const Duration deficit = tenant->devices[index].deficit;
      const auto could_run = [&](const Session* session) {
        return session->tenant == tenant && may_run(*session, rank) && devices_free(*session);
      };
      if (deficit > Duration::zero() || std::none_of(device.sessions.begin(), device.sessions.end(), could_run))
        continue;
      rounds = std::min(rounds, -deficit / turn(index, *tenant, rank));
    }
    if (rounds == INT64_MAX) return;
    for (Tenant* tenant : device.wanting) {
      TenantOnDevice& there = share(*tenant, index);
      if (there.deficit > Duration::zero()) continue;
      const Duration turns = turn(index, *tenant, rank) * rounds;
      there.deficit = std::min(Duration::zero(), there.deficit + turns);
      if (others_want(index, *tenant)) there.granted += turns;
    }
  }
}

void Policy::State::select_leases(Rank rank) {
  bool any = false;
  for (DeviceIndex index = 0; index < devices.size(); ++index) {
    Device& device = devices[index];
    for (Tenant* tenant : device.ring) share(*tenant, index).wanting = false;
    device.wanting.clear();
    for (const Session* session : device.sessions) {
      if (session->rank != rank || share(*session->tenant, index).wanting || !may_run(*session, rank)) continue;
      share(*session->tenant, index).wanting = true;
      device.wanting.push_back(session->tenant);
    }
    any |= !device.wanting.empty();
  }
  for (Device& device : devices) {
    if (!device.wanting.empty() && device.holder != nullptr && device.holder->rank > rank) end_lease(*device.holder);
  }
  keep_or_end_leases(rank);
  if (!any) return;
  grant_claims(rank);
  for (DeviceIndex index = 0; index < devices.size(); ++index) {
    if (devices[index].holder == nullptr && !devices[index].wanting.empty()) pick_holder(index, rank);
  }
  for (DeviceIndex index = 0; index < devices.size(); ++index) {
    Device& device = devices[index];
    if (device.holder != nullptr && device.holder->rank == rank)
      device.holder_contended = others_want(index, *device.holder->tenant);
  }
}

bool Policy::State::co_runs(const Session& session) const {
  return all_devices(session, [](const Device& device) { return device.regime == Regime::co_run; });
}

// Gives a session that is behind its devices alone for now, if it wants them.
void Policy::State::find_alone(Rank rank) {
  for (auto& [id, session] : sessions) {
    if (session->rank != rank || !session->candidate || !co_runs(*session)) continue;
    if (devices[session->devices.front()].co_run.alone() != id ||
        !all_devices(*session, [](const Device& device) { return !device.taken; }))
      continue;
    for (const DeviceIndex index : session->devices) devices[index].alone = session.get();
  }
}

bool Policy::State::makes_way(const Session& session) const {
  return !all_devices(session,
                      [&](const Device& device) { return device.alone == nullptr || device.alone == &session; });
}

void Policy::State::select_co_runners(Rank rank) {
  find_alone(rank);
  for (auto& [id, session] : sessions) {
    if (session->rank != rank || !co_runs(*session)) continue;
    if (session->leased) end_lease(*session);
    session->selected = session->candidate && !makes_way(*session) &&
                        all_devices(*session, [](const Device& device) { return !device.taken; });
  }
}

void Policy::State::select() {
  for (Device& device : devices) {
    device.taken = false;
    device.alone = nullptr;
  }
  for (unsigned r = 0; r < kRanks; ++r) {
    const auto rank = static_cast<Rank>(r);
    select_co_runners(rank);
    select_leases(rank);
    for (auto& [id, session] : sessions) {
      if (session->rank != rank) continue;
      if (session->leased) session->selected = true;
      if (!session->selected) continue;
      for (const DeviceIndex index : session->devices) devices[index].taken = true;
    }
  }
  // A quiet session among co-running ones keeps its gate open, unless it would run beside another class.
  for (auto& [id, session] : sessions) {
    if (session->selected || session->barred_by != nullptr || !session->gate.open || !co_runs(*session) ||
        !active(*session) || makes_way(*session))
      continue;
    session->selected = all_devices(*session, [&](const Device& device) {
      const auto fits = [&](const Session* other) { return !other->candidate || other->rank == session->rank; };
      return std::all_of(device.sessions.begin(), device.sessions.end(), fits);
    });
  }
}

}  // namespace gpuwire::scheduler
