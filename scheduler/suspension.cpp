#include "scheduler/suspension.hpp"

#include <algorithm>
#include <array>

namespace gpuwire::scheduler {
namespace {

constexpr std::array<const char*, 3> kSuspendNames{"never", "pressure", "idle"};
constexpr std::array<const char*, 10> kNoVictimNames{
    "none", "asks_itself",    "not_allowed",   "holds_nothing",    "higher_class",
    "busy", "idle_too_short", "just_returned", "within_guarantee", "host_memory_full"};

// Choice has the state that changes with each chosen victim.
class Choice {
 public:
  Choice(const SuspensionRequest& request, const SuspensionView& view)
      : request_(request), tenants_(view.tenants), host_room_bytes_(view.host_room_bytes) {}

  NoVictim why_not(const SuspendableSession& session) const;
  // Returns the bytes that the asker gets by the session's suspension: another tenant's guaranteed memory stays
  // reserved for that tenant.
  uint64_t gives(const SuspendableSession& session) const;
  void take(const SuspendableSession& session);

 private:
  // Whether the asker, with its request, stays within its tenant's guarantee.
  bool asker_within_guarantee() const;
  SuspensionTenant tenant_of(const SuspendableSession& session) const {
    const auto found = tenants_.find(session.tenant);
    return found == tenants_.end() ? SuspensionTenant{} : found->second;
  }

  const SuspensionRequest& request_;
  std::map<TenantId, SuspensionTenant> tenants_;
  uint64_t host_room_bytes_;
};

// Returns the reason that depends on the session alone, not on the asker or other victims.
NoVictim why_it_stays(const SuspendableSession& session) {
  if (session.when == Suspend::never) return NoVictim::not_allowed;
  if (session.bytes == 0) return NoVictim::holds_nothing;
  if (!session.idle) return NoVictim::busy;
  if (*session.idle < session.suspend_after) return NoVictim::idle_too_short;
  // A division, because a product of times could overflow a duration.
  if (session.on_card && *session.on_card / kKeptPerReturn < session.last_return) return NoVictim::just_returned;
  return NoVictim::none;
}

bool Choice::asker_within_guarantee() const {
  const auto found = tenants_.find(request_.tenant);
  if (found == tenants_.end()) return false;
  const uint64_t room = difference(found->second.guaranteed_bytes, found->second.held_bytes);
  return request_.bytes <= room;
}

NoVictim Choice::why_not(const SuspendableSession& session) const {
  if (request_.session == session.session) return NoVictim::asks_itself;
  if (session.service_class < request_.service_class) return NoVictim::higher_class;
  if (const NoVictim why = why_it_stays(session); why != NoVictim::none) return why;
  const SuspensionTenant tenant = tenant_of(session);
  if (session.tenant != request_.tenant && tenant.held_bytes <= tenant.guaranteed_bytes && !asker_within_guarantee())
    return NoVictim::within_guarantee;
  if (session.host_bytes > std::min(tenant.host_room_bytes, host_room_bytes_)) return NoVictim::host_memory_full;
  return NoVictim::none;
}

uint64_t Choice::gives(const SuspendableSession& session) const {
  if (session.tenant == request_.tenant || asker_within_guarantee()) return session.bytes;
  const SuspensionTenant tenant = tenant_of(session);
  return std::min(session.bytes, difference(tenant.held_bytes, tenant.guaranteed_bytes));
}

void Choice::take(const SuspendableSession& session) {
  SuspensionTenant& tenant = tenants_[session.tenant];
  // The asker's own tenant gets the memory of its suspended session, so its guarantee is judged by its memory before.
  if (session.tenant != request_.tenant) tenant.held_bytes = difference(tenant.held_bytes, session.bytes);
  tenant.host_room_bytes = difference(tenant.host_room_bytes, session.host_bytes);
  host_room_bytes_ = difference(host_room_bytes_, session.host_bytes);
}

// Returns the expected loss by a victim, in a unit that only serves for comparison.
double expected_loss(const SuspendableSession& session) {
  const double idle_ns = std::max<double>(1.0, double(session.idle->count()));
  return double(session.return_cost.count()) / idle_ns;
}

// Whether `a` is the better victim.
bool better(const SuspendableSession& a, const SuspendableSession& b) {
  if (a.service_class != b.service_class) return a.service_class > b.service_class;
  const double loss_a = expected_loss(a), loss_b = expected_loss(b);
  if (loss_a != loss_b) return loss_a < loss_b;
  if (a.bytes != b.bytes) return a.bytes < b.bytes;
  return a.session < b.session;
}

using Sessions = std::vector<const SuspendableSession*>;

// Returns the bytes that at most `count` more victims free. Precondition: `sessions` is sorted, the largest first.
uint64_t reachable(Choice choice, const Sessions& sessions, const Sessions& taken, size_t count) {
  uint64_t bytes = 0;
  for (const SuspendableSession* session : sessions) {
    if (count == 0) break;
    if (std::ranges::find(taken, session) != taken.end() || choice.why_not(*session) != NoVictim::none) continue;
    bytes += choice.gives(*session);
    choice.take(*session);
    --count;
  }
  return bytes;
}

// Returns the bytes that all these victims free.
uint64_t given_by(Choice choice, const Sessions& sessions) {
  uint64_t bytes = 0;
  for (const SuspendableSession* session : sessions) {
    bytes += choice.gives(*session);
    choice.take(*session);
  }
  return bytes;
}

// Removes victims without which the others still free enough.
void drop_superfluous(const Choice& choice, Sessions& taken, uint64_t wanted) {
  const Sessions worst_first(taken.rbegin(), taken.rend());
  for (const SuspendableSession* session : worst_first) {
    Sessions others = taken;
    std::erase(others, session);
    if (given_by(choice, others) >= wanted) taken = std::move(others);
  }
}

// Returns exactly `count` victims: each time the best one with which the remaining ones can still free enough.
// Precondition: reachable() for `count` is enough.
Sessions take_best(Choice choice, const Sessions& sessions, uint64_t wanted, size_t count) {
  Sessions by_worth = sessions, taken;
  std::ranges::sort(by_worth, [](const auto* a, const auto* b) { return better(*a, *b); });
  while (wanted > 0 && count > 0) {
    --count;
    const auto next = std::ranges::find_if(by_worth, [&](const SuspendableSession* session) {
      if (std::ranges::find(taken, session) != taken.end() || choice.why_not(*session) != NoVictim::none) return false;
      Choice after = choice;
      after.take(*session);
      Sessions with = taken;
      with.push_back(session);
      return choice.gives(*session) + reachable(after, sessions, with, count) >= wanted;
    });
    if (next == by_worth.end()) return {};
    wanted = difference(wanted, choice.gives(**next));
    choice.take(**next);
    taken.push_back(*next);
  }
  return wanted == 0 ? taken : Sessions{};
}

}  // namespace

const char* name_of(Suspend when) { return kSuspendNames[size_t(when)]; }
const char* name_of(NoVictim why) { return kNoVictimNames[size_t(why)]; }

NoVictim why_no_victim(const SuspendableSession& session, const SuspensionRequest& request,
                       const SuspensionView& view) {
  return Choice(request, view).why_not(session);
}

std::vector<SessionId> choose_victims(const SuspensionRequest& request, const SuspensionView& view) {
  if (request.bytes == 0) return {};
  const Choice choice(request, view);
  Sessions candidates;
  for (const SuspendableSession& session : view.sessions)
    if (choice.why_not(session) == NoVictim::none) candidates.push_back(&session);
  std::ranges::sort(candidates, [&](const auto* a, const auto* b) {
    const uint64_t gives_a = choice.gives(*a), gives_b = choice.gives(*b);
    return gives_a != gives_b ? gives_a > gives_b : a->session < b->session;
  });
  for (size_t count = 1; count <= std::min(kVictimsMax, candidates.size()); ++count) {
    if (reachable(choice, candidates, {}, count) < request.bytes) continue;
    Sessions taken = take_best(choice, candidates, request.bytes, count);
    drop_superfluous(choice, taken, request.bytes);
    std::vector<SessionId> victims;
    for (const SuspendableSession* session : taken) victims.push_back(session->session);
    return victims;
  }
  return {};
}

NoVictim why_not_by_idleness(const SuspendableSession& session, const SuspensionTenant& tenant,
                             uint64_t host_room_bytes) {
  if (session.when != Suspend::idle) return NoVictim::not_allowed;
  if (const NoVictim why = why_it_stays(session); why != NoVictim::none) return why;
  return session.host_bytes > std::min(tenant.host_room_bytes, host_room_bytes) ? NoVictim::host_memory_full
                                                                                : NoVictim::none;
}

}  // namespace gpuwire::scheduler
