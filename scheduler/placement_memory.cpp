// Computes the memory available to a request, now or without some running sessions.
#include <algorithm>

#include "scheduler/placement_state.hpp"

namespace gpuwire::scheduler {
uint64_t Placement::State::promised(DeviceIndex device, const TenantId* tenant, const Gone& gone) const {
  uint64_t sum = 0;
  for (const auto& [session, one] : running) {
    if (std::count(one.devices.begin(), one.devices.end(), device) && (!tenant || one.tenant == *tenant) &&
        !gone.contains(one))
      sum += reserved_by(session, one);
  }
  return sum;
}

uint64_t Placement::State::held(TenantId tenant, DeviceIndex device) const {
  const uint64_t reserved = promised(device, &tenant);
  return memory.held ? std::max(memory.held(tenant, device), reserved) : reserved;
}

uint64_t Placement::State::held_by(SessionId session, const Running& one, DeviceIndex device) const {
  const uint64_t reserved = reserved_by(session, one);
  return memory.held_by ? std::max(memory.held_by(session, device), reserved) : reserved;
}

uint64_t Placement::State::gained(TenantId tenant, DeviceIndex device, const Gone& gone) const {
  std::map<TenantId, uint64_t> back;
  for (const auto& [session, one] : running) {
    if (gone.contains(one) && std::count(one.devices.begin(), one.devices.end(), device))
      back[one.tenant] += held_by(session, one, device);
  }
  // Memory that a tenant shares beyond its sessions' ends is freed with its last session.
  if (gone.tenant) back[*gone.tenant] = UINT64_MAX;
  uint64_t sum = 0;
  for (const auto& [whose, bytes] : back) {
    const uint64_t has = held(whose, device);
    // Another tenant's guaranteed memory stays reserved for it.
    const uint64_t kept = whose == tenant ? 0 : guaranteed(whose, device);
    sum += std::max(has, kept) - std::max(difference(has, bytes), kept);
  }
  return sum;
}

bool Placement::State::user_has_room(const PlacementRequest& request, DeviceIndex device, const Gone& gone) const {
  const uint64_t most = user_most(request);
  if (most == UINT64_MAX) return true;
  uint64_t has = 0;
  for (const auto& [session, one] : running) {
    if (one.tenant == request.tenant && one.user == request.user && !gone.contains(one) &&
        std::count(one.devices.begin(), one.devices.end(), device))
      has += held_by(session, one, device);
  }
  return request.memory_bytes <= difference(most, has);
}

bool Placement::State::has_memory(const PlacementRequest& request, DeviceIndex device, const Gone& gone) const {
  const uint64_t wanted = request.memory_bytes;
  if (wanted == 0) return true;
  if (!user_has_room(request, device, gone)) return false;
  const auto room_beside = [&](uint64_t bytes, uint64_t taken) { return taken <= bytes && bytes - taken >= wanted; };
  if (!room_beside(devices[device].bytes, promised(device, nullptr, gone)) ||
      !room_beside(most(request.tenant, device), promised(device, &request.tenant, gone)))
    return false;
  if (!memory.free_now) return true;
  return memory.free_now(request.tenant, device) + gained(request.tenant, device, gone) >= wanted;
}

bool Placement::State::fits(const PlacementRequest& request, const Gone& gone) const {
  const std::vector<DeviceIndex> among = possible(request);
  const auto fitting = std::count_if(among.begin(), among.end(), [&](DeviceIndex device) {
    return has_memory(request, device, gone) && has_session(device, gone);
  });
  return size_t(fitting) >= request.gpus;
}

// Whether the tenant's own sessions block the request: it would fit without them, or no other session's end helps while
// they exist.
bool Placement::State::waits_for_own(const PlacementRequest& request) const {
  return fits(request, {.tenant = request.tenant}) || beyond_own_limit(request);
}

bool Placement::State::beyond_own_limit(const PlacementRequest& request) const {
  const std::vector<DeviceIndex> among = usable(request);
  const auto within_limit = std::count_if(among.begin(), among.end(), [&](DeviceIndex device) {
    return difference(most(request.tenant, device), held(request.tenant, device)) >= request.memory_bytes &&
           user_has_room(request, device);
  });
  return size_t(within_limit) < request.gpus;
}

uint8_t Placement::State::takes(const PlacementRequest& request, DeviceIndex device) const {
  const uint64_t own = guaranteed(request.tenant, device), has = own ? held(request.tenant, device) : 0;
  if (has < own && own - has >= request.memory_bytes) return kSession;
  return request.memory_bytes ? kEverything : kSession | kAnything;
}

}  // namespace gpuwire::scheduler
