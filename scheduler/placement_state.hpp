// The placement's insides: who waits, who runs, what is free for whom. Private to scheduler/.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "scheduler/placement.hpp"

namespace gpuwire::scheduler {

struct Placement::State {
  struct Waiting {
    PlacementRequest request;
    uint64_t arrival = 0;
    uint64_t round_least = 0;  // of its class when it came
    uint64_t round = 0;        // in which its tenant's turn is its own
    unsigned overtaken = 0;
    // Of a gang: from here on sessions count as having begun after it came; its arrival, until its GPUs have been lent.
    uint64_t newer_from = 0;
    // How long others have been held back by what is kept for it, since it was kept; how long they may be; and until
    // when it is lent at least.
    Duration kept{}, kept_max = kKeptForGangFirst;
    Time lent_until{};
  };
  // Of one class, while anybody waits in it.
  struct Rounds {
    uint64_t current = 0;                 // of the one that has begun last
    std::map<TenantId, uint64_t> served;  // of each tenant's session that has begun last
  };
  struct Running {
    TenantId tenant{};
    uint64_t memory_bytes = 0;
    std::vector<DeviceIndex> devices;
    uint64_t arrival = 0;   // when it began, in the order of the arrivals
    std::string user = {};  // who of the tenant
  };
  // What a request may wait for on a device, and another one take from it.
  enum Need : uint8_t {
    kMemory = 1,   // that can be reserved
    kSession = 2,  // a session's place there
    kAnything = 4  // that no session begins there at all, but for those that live within their guarantees
  };
  static constexpr uint8_t kEverything = kMemory | kSession | kAnything;
  using Needs = std::vector<uint8_t>;  // by device: sums of Need
  // Why a request does not start now.
  struct Obstacle {
    std::string why;
    bool own = false;         // its tenant's own limits or sessions: holds up nobody else
    bool held_back = false;   // it fits, but for what is kept for others
    bool awaits_end = false;  // it begins as programs on its GPUs end, whoever's they are
    uint8_t lacks = 0;        // sum of Need, on the devices that are possible for it
  };
  // Sessions that are thought away: a tenant's, or those that have begun after an arrival.
  struct Gone {
    std::optional<TenantId> tenant;
    std::optional<uint64_t> after;
    bool contains(const Running& one) const { return tenant ? one.tenant == *tenant : after && one.arrival > *after; }
  };

  std::vector<Device> devices;
  Memory memory;
  Places places;
  Held why_held;
  std::vector<Waiting> queue;  // by class, round, arrival
  std::map<ServiceClass, Rounds> rounds;
  std::map<SessionId, Running> running;
  uint64_t arrivals = 0;
  Time now{};
  bool late = false;  // memory was taken after it was looked at: another look may find other GPUs

  std::vector<DeviceIndex> allowed(const PlacementRequest& request) const;
  // Those of `allowed` that could ever have the memory.
  std::vector<DeviceIndex> possible(const PlacementRequest& request) const;
  std::string never(const PlacementRequest& request) const;
  size_t sessions_on(DeviceIndex device, const Gone& gone = {}) const;
  size_t sessions_of(TenantId tenant) const;
  size_t sessions_of(TenantId tenant, const std::string& user) const;
  std::map<TenantId, size_t> sessions_by_tenant() const;
  // What sessions there were told they would find free; a second one is not promised the same bytes before the first
  // has taken them.
  uint64_t promised(DeviceIndex device, const TenantId* tenant, const Gone& gone = {}) const;
  bool has_memory(const PlacementRequest& request, DeviceIndex device, const Gone& gone = {}) const;
  bool has_session(DeviceIndex device, const Gone& gone = {}) const {
    return !devices[device].sessions_max || sessions_on(device, gone) < devices[device].sessions_max;
  }
  // Whether devices enough have both, whoever is in front.
  bool fits(const PlacementRequest& request, const Gone& gone = {}) const;
  uint64_t held(TenantId tenant, DeviceIndex device) const;
  uint64_t held_by(SessionId session, const Running& running, DeviceIndex device) const;
  uint64_t guaranteed(TenantId tenant, DeviceIndex device) const {
    return memory.guaranteed ? memory.guaranteed(tenant, device) : 0;
  }
  // How much more of the device there would be for the tenant.
  uint64_t gained(TenantId tenant, DeviceIndex device, const Gone& gone) const;
  // Sum of Need: what it would take there that others may be waiting for.
  uint8_t takes(const PlacementRequest& request, DeviceIndex device) const;
  bool waits_for_own(const PlacementRequest& request) const;
  // What its tenant may have at most does not hold the request beside what the tenant has: nobody else's end helps.
  bool beyond_own_limit(const PlacementRequest& request) const;
  // A gang that does not fit as long as sessions run that were there before it, whoever else goes.
  bool waits_for_older(const Waiting& waiting) const {
    return waiting.request.gpus > 1 && !fits(waiting.request, {.tenant = {}, .after = waiting.newer_from});
  }
  // What was kept for it is used by others for now.
  bool lends(const Waiting& waiting) const {
    return waiting.newer_from != waiting.arrival && (now < waiting.lent_until || waits_for_older(waiting));
  }
  // It may be passed by those behind it, and what it wants be taken.
  bool may_be_overtaken(const Waiting& waiting) const {
    return waiting.overtaken < kOvertakenMax || lends(waiting) || waits_for_older(waiting);
  }
  bool shares_a_device(const PlacementRequest& request, const std::vector<bool>& of) const;
  // By index: those whose GPUs are kept, and keep somebody else from beginning.
  std::vector<bool> who_holds_back() const;
  uint64_t most(TenantId tenant, DeviceIndex device) const {
    return std::min(devices[device].bytes, memory.most ? memory.most(tenant, device) : UINT64_MAX);
  }
  // The same within the user's bound.
  uint64_t most(const PlacementRequest& request, DeviceIndex device) const {
    return std::min(most(request.tenant, device), user_most(request));
  }
  static uint64_t user_most(const PlacementRequest& request) {
    return request.user_memory_max_bytes && !request.user.empty() ? request.user_memory_max_bytes : UINT64_MAX;
  }
  // Does the user's bound hold the request beside what the user's sessions have of the device?
  bool user_has_room(const PlacementRequest& request, DeviceIndex device, const Gone& gone = {}) const;
  std::string why_no_memory(const PlacementRequest& request) const;
  std::vector<DeviceIndex> least_loaded(std::vector<DeviceIndex> candidates, const PlacementRequest& request) const;
  // `owed`: what somebody in front is. Devices, or an obstacle.
  std::variant<Placed, Obstacle> place(const Waiting& waiting, const Needs& owed) const;
  // The first in the queue's order that may start now, of those that `may` says; it runs from now on.
  // `waited`: it has stood in the queue.
  std::optional<std::pair<SessionId, Placed>> start_one(const std::function<bool(SessionId)>& may, bool waited);
  std::optional<std::pair<SessionId, Placed>> find_one(const std::function<bool(SessionId)>& may, bool waited);

  // placement_queue.cpp
  void enter(const PlacementRequest& request, uint64_t round_least);
  void revise(Waiting& waiting, const PlacementRequest& request);
  // One of those that have waited begins: the turn was its tenant's first one's.
  void count_turn(const Waiting& waiting);
  // After each change of the queue: rounds and order as they are now.
  void arrange();
  static bool before(const Waiting& a, const Waiting& b);

  // One pass over the queue: `visit` gets each waiting one's index with where it could be placed or why not, and says
  // whether that is enough.
  template <class Visit>
  void walk(Visit&& visit) const;
};

}  // namespace gpuwire::scheduler
