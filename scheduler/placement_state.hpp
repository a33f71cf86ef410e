// The placement's internal state: waiting and running sessions, free resources. Private to scheduler/.
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
    uint64_t round_least = 0;  // its class's current round at its arrival
    uint64_t round = 0;        // the round of its tenant's turn for it
    unsigned overtaken = 0;
    // Of a gang: sessions that began after this arrival number count as younger than the gang. It is the gang's own
    // arrival until its GPUs have been lent.
    uint64_t newer_from = 0;
    // The time for which its kept GPUs have held others back; the bound of that time; and the earliest end of the
    // lending.
    Duration kept{}, kept_max = kKeptForGangFirst;
    Time lent_until{};
  };
  // The rounds of one class, while any session of it waits.
  struct Rounds {
    uint64_t current = 0;                 // the round of the session that began last
    std::map<TenantId, uint64_t> served;  // the same of each tenant
  };
  struct Running {
    TenantId tenant{};
    uint64_t memory_bytes = 0;
    std::vector<DeviceIndex> devices;
    uint64_t arrival = 0;   // the number of its begin, in the order of arrivals
    std::string user = {};  // of the tenant
  };
  // A resource of a device that a request may wait for and another one may take.
  enum Need : uint8_t {
    kMemory = 1,   // memory to reserve
    kSession = 2,  // a session's place
    kAnything = 4  // that no session begins there but those within their guarantees
  };
  static constexpr uint8_t kEverything = kMemory | kSession | kAnything;
  using Needs = std::vector<uint8_t>;  // by device: sums of Need
  // The reason why a request does not start now.
  struct Obstacle {
    std::string why;
    bool own = false;         // its tenant's own limits or sessions: holds up no other request
    bool held_back = false;   // it would fit without the resources kept for others
    bool awaits_end = false;  // it begins as programs of any tenant on its GPUs end
    uint8_t lacks = 0;        // sum of Need, on its possible devices
  };
  // Sessions that a check ignores: a tenant's, or those that began after an arrival.
  struct Gone {
    std::optional<TenantId> tenant;
    std::optional<uint64_t> after;
    bool contains(const Running& one) const { return tenant ? one.tenant == *tenant : after && one.arrival > *after; }
  };

  std::vector<Device> devices;
  Memory memory;
  Places places;
  Held why_held;
  Drained drained;
  std::vector<Waiting> queue;  // by class, round, arrival
  std::map<ServiceClass, Rounds> rounds;
  std::map<SessionId, Running> running;
  uint64_t arrivals = 0;
  Time now{};
  bool late = false;  // memory was taken after it was read: another pass may find other GPUs

  std::vector<DeviceIndex> allowed(const PlacementRequest& request) const;
  // Returns the devices of `allowed` that could ever have the memory.
  std::vector<DeviceIndex> possible(const PlacementRequest& request) const;
  // Returns those of `possible` that are not drained now.
  std::vector<DeviceIndex> usable(const PlacementRequest& request) const;
  bool is_drained(DeviceIndex device) const { return drained && drained(device); }
  std::string why_drained(const PlacementRequest& request) const;
  std::string never(const PlacementRequest& request) const;
  size_t sessions_on(DeviceIndex device, const Gone& gone = {}) const;
  size_t sessions_of(TenantId tenant) const;
  size_t sessions_of(TenantId tenant, const std::string& user) const;
  std::map<TenantId, size_t> sessions_by_tenant() const;
  // Returns the session's reservation on each of its devices, which a suspended session does not have.
  uint64_t reserved_by(SessionId session, const Running& one) const {
    return memory.away && memory.away(session) ? 0 : one.memory_bytes;
  }
  // Returns the bytes promised to sessions on the device that they have not taken yet: no other session is promised the
  // same bytes.
  uint64_t promised(DeviceIndex device, const TenantId* tenant, const Gone& gone = {}) const;
  bool has_memory(const PlacementRequest& request, DeviceIndex device, const Gone& gone = {}) const;
  bool has_session(DeviceIndex device, const Gone& gone = {}) const {
    return !is_drained(device) &&
           (!devices[device].sessions_max || sessions_on(device, gone) < devices[device].sessions_max);
  }
  // Whether enough devices have both, regardless of requests in front.
  bool fits(const PlacementRequest& request, const Gone& gone = {}) const;
  uint64_t held(TenantId tenant, DeviceIndex device) const;
  uint64_t held_by(SessionId session, const Running& running, DeviceIndex device) const;
  uint64_t guaranteed(TenantId tenant, DeviceIndex device) const {
    return memory.guaranteed ? memory.guaranteed(tenant, device) : 0;
  }
  // Returns how many more bytes the tenant would have on the device without `gone`.
  uint64_t gained(TenantId tenant, DeviceIndex device, const Gone& gone) const;
  // Returns the sum of Need that the request would take from waiting ones there.
  uint8_t takes(const PlacementRequest& request, DeviceIndex device) const;
  bool waits_for_own(const PlacementRequest& request) const;
  // Whether the request, beside the tenant's present use, exceeds the tenant's limit: no other tenant's end helps.
  bool beyond_own_limit(const PlacementRequest& request) const;
  // Whether the request is a gang that older sessions block, even if all younger ones end.
  bool waits_for_older(const Waiting& waiting) const {
    return waiting.request.gpus > 1 && !fits(waiting.request, {.tenant = {}, .after = waiting.newer_from});
  }
  // Whether its kept GPUs are lent to others now.
  bool lends(const Waiting& waiting) const {
    return waiting.newer_from != waiting.arrival && (now < waiting.lent_until || waits_for_older(waiting));
  }
  // Whether requests behind it may take the resources that it waits for.
  bool may_be_overtaken(const Waiting& waiting) const {
    return waiting.overtaken < kOvertakenMax || lends(waiting) || waits_for_older(waiting);
  }
  bool shares_a_device(const PlacementRequest& request, const std::vector<bool>& of) const;
  // Returns, by index, whether GPUs kept for the request hold another one back.
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
  // Whether the request fits the user's bound, beside the user's sessions on the device.
  bool user_has_room(const PlacementRequest& request, DeviceIndex device, const Gone& gone = {}) const;
  std::string why_no_memory(const PlacementRequest& request) const;
  std::vector<DeviceIndex> least_loaded(std::vector<DeviceIndex> candidates, const PlacementRequest& request) const;
  // Returns devices, or an obstacle. `owed`: the resources owed to requests in front.
  std::variant<Placed, Obstacle> place(const Waiting& waiting, const Needs& owed) const;
  // Starts the first request in the queue's order that fits now and that `may` admits, and returns it. `waited`: it has
  // waited in the queue.
  std::optional<std::pair<SessionId, Placed>> start_one(const std::function<bool(SessionId)>& may, bool waited);
  std::optional<std::pair<SessionId, Placed>> find_one(const std::function<bool(SessionId)>& may, bool waited);

  // placement_queue.cpp
  void enter(const PlacementRequest& request, uint64_t round_least);
  void revise(Waiting& waiting, const PlacementRequest& request);
  // A waiting session begins: its turn counts as that of its tenant's first waiting session.
  void count_turn(const Waiting& waiting);
  // Updates rounds and order; called after each change of the queue.
  void arrange();
  static bool before(const Waiting& a, const Waiting& b);

  // Passes over the queue: `visit` gets each request's index with its devices or its obstacle and the resources owed to
  // requests in front, and returns true to stop.
  template <class Visit>
  void walk(Visit&& visit) const;
};

}  // namespace gpuwire::scheduler
