#include "server/broker/suspension/memory_pressure.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/broker/limits.hpp"

namespace gpuwire::server {
namespace {

using scheduler::DeviceIndex;
using scheduler::Duration;
using scheduler::SessionId;
using scheduler::Suspend;
using Kind = scheduler::NoVictim;

bool has_gpus(const SessionRecord& session) {
  return !session.management && (session.state == SessionState::running || session.state == SessionState::detached);
}

bool contains(const auto& all, const auto& one) { return std::ranges::find(all, one) != all.end(); }

}  // namespace

MemoryPressure::MemoryPressure(PressureParts parts) : parts_(std::move(parts)), timer_(parts_.io) {
  parts_.suspensions.set_return_waits([this] { wake(); });
  parts_.suspensions.set_may_return([this](const SessionRecord& session) { return may_return(session); });
  parts_.registry.observe(lifetime_.guard([this](const SessionEvent& event) {
    if (event.kind == SessionEvent::Kind::queued) wake();
  }));
}

// --- choices -------------------------------------------------------------------------------------------------------

bool MemoryPressure::anybody_has(Suspend least) const {
  return std::ranges::any_of(parts_.tenants.all(),
                             [&](const Tenant& tenant) { return tenant.settings.suspend >= least; });
}

scheduler::SuspendableSession MemoryPressure::suspendable(const SessionRecord& session,
                                                          std::optional<DeviceIndex> device) const {
  const Tenant* tenant = parts_.tenants.find(session.tenant_id);
  const uint64_t all = parts_.memory.releasable_bytes(session);
  scheduler::SuspendableSession out{.session = session.number,
                                    .tenant = session.tenant_id,
                                    .service_class = session.service_class,
                                    .bytes = device ? parts_.memory.releasable_bytes(session, *device) : all,
                                    .host_bytes = all,
                                    .idle = parts_.idle(session.number),
                                    .on_card = {}};
  if (tenant) {
    out.when = tenant->settings.suspend;
    out.suspend_after = std::chrono::milliseconds(std::min<uint64_t>(tenant->settings.suspend_after_ms, kIdleMsMax));
  }
  out.return_cost = std::chrono::milliseconds(kReturnLeastMs + all / kReturnBytesPerMs);
  if (const auto last = parts_.suspensions.last_return(session.number)) {
    out.on_card = parts_.now() - last->at;
    out.return_cost = out.last_return = last->took;
  }
  return out;
}

std::vector<scheduler::SuspendableSession> MemoryPressure::candidates(const Need& need, MemoryShortage::Of of,
                                                                      const std::vector<SessionId>& chosen,
                                                                      bool refused) const {
  std::vector<scheduler::SuspendableSession> found;
  for (const auto& [number, session] : parts_.registry.all()) {
    if (!has_gpus(session) || !contains(session.devices, need.device) || contains(chosen, number) ||
        victims_.contains(number) || parts_.suspensions.phase_of(number) != SuspensionPhase::running)
      continue;
    // Where a limit of the tenant or user is in the way, the memory of others does not help.
    if (of != MemoryShortage::Of::device && session.tenant_id != need.asker.tenant_id) continue;
    if (of == MemoryShortage::Of::user && session.user != need.asker.user) continue;
    if (const auto refusal = refusals_.find(number); !refused && refusal != refusals_.end())
      if (refusal->second.until > parts_.now()) continue;
    if (!parts_.memory.why_not_released(session).empty()) continue;
    found.push_back(suspendable(session, need.device));
  }
  return found;
}

std::map<scheduler::TenantId, scheduler::SuspensionTenant> MemoryPressure::tenants_on(DeviceIndex device) const {
  std::map<scheduler::TenantId, scheduler::SuspensionTenant> all;
  for (const Tenant& tenant : parts_.tenants.all())
    all[tenant.id] = {.held_bytes = parts_.memory.held_bytes(tenant.id, device),
                      .guaranteed_bytes = memory_on(tenant.settings, device).guaranteed_bytes,
                      .host_room_bytes = parts_.suspensions.host_room(tenant.id)};
  return all;
}

MemoryPressure::Choice MemoryPressure::choose(const Need& need, const std::vector<SessionId>& chosen) const {
  const MemoryShortage shortage = parts_.memory.shortage(need.asker, need.device, need.bytes);
  uint64_t coming = 0;
  const auto add = [&](SessionId victim) {
    if (const SessionRecord* session = parts_.registry.find(victim))
      coming += parts_.memory.releasable_bytes(*session, need.device);
  };
  for (SessionId victim : chosen) add(victim);
  for (const auto& [number, victim] : victims_)
    if (victim.asker == need.asker.number && contains(victim.devices, need.device)) add(number);
  if (shortage.bytes <= coming) return {.kind = Choice::Kind::enough};
  scheduler::SuspensionRequest request{.session = {},
                                       .tenant = need.asker.tenant_id,
                                       .service_class = need.asker.service_class,
                                       .bytes = shortage.bytes - coming};
  if (need.begun) request.session = need.asker.number;
  const auto tenants = tenants_on(need.device);
  for (const auto kind : {Choice::Kind::suspend, Choice::Kind::rests, Choice::Kind::not_quiet}) {
    auto sessions = candidates(need, shortage.of, chosen, kind == Choice::Kind::not_quiet);
    if (kind != Choice::Kind::suspend)
      for (scheduler::SuspendableSession& session : sessions) session.on_card.reset();
    const scheduler::SuspensionView view{sessions, tenants, parts_.suspensions.host_room()};
    Choice choice{.kind = kind, .victims = scheduler::choose_victims(request, view)};
    if (choice.victims.empty()) continue;
    for (const scheduler::SuspendableSession& session : sessions)
      if (contains(choice.victims, session.session)) choice.bytes += session.host_bytes;
    if (kind != Choice::Kind::suspend) choice.victims.clear();
    return choice;
  }
  return {};
}

// The session needs memory of each of its devices.
MemoryPressure::Choice MemoryPressure::choose_for_return(const SessionRecord& session) const {
  Choice all{.kind = Choice::Kind::enough};
  for (DeviceIndex device : session.devices) {
    const uint64_t bytes = parts_.memory.away_bytes(session, device);
    Choice choice = choose({session, true, device, bytes}, all.victims);
    if (choice.waits()) return choice;
    if (choice.kind == Choice::Kind::suspend) all.kind = Choice::Kind::suspend;
    std::ranges::move(choice.victims, std::back_inserter(all.victims));
  }
  return all;
}

// The program takes those devices for which least has to move.
MemoryPressure::Choice MemoryPressure::choose_for_queue(const SessionRecord& session,
                                                        const scheduler::MemoryWait& wait) const {
  std::vector<std::pair<uint64_t, DeviceIndex>> devices;
  for (DeviceIndex device : wait.devices) {
    const Choice choice = choose({session, false, device, wait.memory_bytes}, {});
    if (choice.kind != Choice::Kind::hopeless) devices.emplace_back(choice.bytes, device);
  }
  if (devices.size() < wait.gpus) return {};
  std::ranges::sort(devices);
  devices.resize(wait.gpus);
  Choice all{.kind = Choice::Kind::enough};
  for (const auto& [bytes, device] : devices) {
    Choice choice = choose({session, false, device, wait.memory_bytes}, all.victims);
    if (choice.waits()) return choice;
    if (choice.kind == Choice::Kind::suspend) all.kind = Choice::Kind::suspend;
    std::ranges::move(choice.victims, std::back_inserter(all.victims));
  }
  return all;
}

// --- suspensions ---------------------------------------------------------------------------------------------------

bool MemoryPressure::others_are_served(SessionId asker, const std::vector<DeviceIndex>& devices) const {
  return std::ranges::any_of(victims_, [&](const auto& one) {
    const Victim& victim = one.second;
    return victim.asker && *victim.asker != asker &&
           std::ranges::any_of(victim.devices, [&](DeviceIndex device) { return contains(devices, device); });
  });
}

bool MemoryPressure::may_return(const SessionRecord& session) const {
  return !others_are_served(session.number, session.devices);
}

bool MemoryPressure::suspends_for(SessionId asker) const {
  return std::ranges::any_of(victims_, [&](const auto& one) { return one.second.asker == asker; });
}

void MemoryPressure::serve(const SessionRecord& asker, const std::vector<DeviceIndex>& devices, const Choice& choice,
                           bool returns) {
  if (choice.kind != Choice::Kind::suspend || others_are_served(asker.number, devices)) return;
  for (SessionId victim : choice.victims)
    suspend(victim, asker.number, {fmt::format("memory for session {}", uint64_t(asker.number)), returns});
}

void MemoryPressure::suspend(SessionId number, std::optional<SessionId> asker, const SuspensionRequester& requester) {
  const SessionRecord* session = parts_.registry.find(number);
  if (!session) return;
  victims_[number] = {asker, session->devices};
  parts_.suspensions.suspend(number, requester, lifetime_.guard([this, number](const Suspensions::Answer& answer) {
    victims_.erase(number);
    if (answer) {
      refusals_.erase(number);
    } else {
      Refusal& refusal = refusals_[number];
      const uint32_t quick_ms = kVictimRetryMs << std::min(refusal.count, kVictimDoublings);
      const uint32_t wait_ms = refusal.count++ < kVictimQuickTries ? quick_ms : kVictimSlowMs;
      refusal.until = parts_.now() + std::chrono::milliseconds(wait_ms);
      spdlog::debug("session {} is not suspended: {}", uint64_t(number), answer.error());
    }
    wake();
  }));
}

SuspensionRelief MemoryPressure::relieve(SessionId number, DeviceIndex device, uint64_t bytes) {
  const SessionRecord* session = parts_.registry.find(number);
  if (!session || !anybody_has(Suspend::pressure) || !parts_.suspensions.why_no_moves().empty())
    return SuspensionRelief::none;
  const Choice choice = choose({*session, true, device, bytes}, {});
  switch (choice.kind) {
    case Choice::Kind::hopeless: break;
    // If enough is free, an allocation fails for another reason.
    case Choice::Kind::enough: return suspends_for(number) ? SuspensionRelief::coming : SuspensionRelief::none;
    case Choice::Kind::suspend: serve(*session, {device}, choice, false); return SuspensionRelief::coming;
    case Choice::Kind::rests: return SuspensionRelief::coming;
    case Choice::Kind::not_quiet: return SuspensionRelief::perhaps;
  }
  return SuspensionRelief::none;
}

void MemoryPressure::suspend_idle() {
  for (const auto& [number, session] : parts_.registry.all()) {
    const Tenant* tenant = parts_.tenants.find(session.tenant_id);
    if (!tenant || tenant->settings.suspend != Suspend::idle || !has_gpus(session) || victims_.contains(number) ||
        parts_.suspensions.phase_of(number) != SuspensionPhase::running)
      continue;
    if (auto refusal = refusals_.find(number); refusal != refusals_.end() && refusal->second.until > parts_.now())
      continue;
    if (!parts_.memory.why_not_released(session).empty()) continue;
    const uint64_t room = parts_.suspensions.host_room();
    const uint64_t of_tenant = parts_.suspensions.host_room(session.tenant_id);
    if (why_not_by_idleness(suspendable(session, {}), {.host_room_bytes = of_tenant}, room) == Kind::none)
      suspend(number, {}, {"its idle time", false});
  }
}

void MemoryPressure::ended(const SessionRecord& session) { refusals_.erase(session.number); }

// --- times ---------------------------------------------------------------------------------------------------------

void MemoryPressure::poll() {
  struct Asker {
    const SessionRecord* session;
    const scheduler::MemoryWait* wait;  // null: it returns
  };
  if (!anybody_has(Suspend::pressure)) return;
  const auto waits = parts_.queue();
  std::vector<Asker> askers;
  for (SessionId number : parts_.suspensions.returns())
    if (const SessionRecord* session = parts_.registry.find(number);
        session && parts_.suspensions.why_held(*session).empty())
      askers.push_back({session, nullptr});
  for (const scheduler::MemoryWait& wait : waits)
    if (const SessionRecord* session = parts_.registry.find(wait.session)) askers.push_back({session, &wait});
  std::ranges::stable_sort(askers, {}, [](const Asker& asker) { return asker.session->service_class; });
  if (parts_.suspensions.why_no_moves().empty()) {
    for (const auto& [session, wait] : askers) {
      if (!wait) {
        serve(*session, session->devices, choose_for_return(*session), true);
      } else if (!suspends_for(session->number)) {
        serve(*session, wait->devices, choose_for_queue(*session, *wait), false);
        // Later, because the change may start sessions.
        if (suspends_for(session->number) && parts_.queue_changed)
          boost::asio::post(parts_.io, lifetime_.guard([this] { parts_.queue_changed(); }));
      }
    }
    suspend_idle();
  }
  if (!askers.empty()) poll_later(kPressurePollMs);
  else if (anybody_has(Suspend::idle)) poll_later(kIdlePollMs);
}

void MemoryPressure::wake() {
  if (std::exchange(woken_, true)) return;
  boost::asio::post(parts_.io, lifetime_.guard([this] {
    woken_ = false;
    poll();
  }));
}

void MemoryPressure::poll_later(uint32_t ms) {
  timer_.expires_after(std::chrono::milliseconds(ms));
  timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error) poll();
  }));
}

}  // namespace gpuwire::server
