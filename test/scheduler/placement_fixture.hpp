// What tests of placement ask and read.
#pragma once

#include <string>
#include <vector>

#include "scheduler/placement.hpp"

namespace gpuwire::scheduler {

inline constexpr uint64_t kGiB = uint64_t(1) << 30;

inline PlacementRequest asks(uint64_t session, uint64_t gib = 0, unsigned gpus = 1,
                             ServiceClass service_class = ServiceClass::batch) {
  return {.session = SessionId(session),
          .tenant = TenantId(session),
          .service_class = service_class,
          .gpus = gpus,
          .memory_bytes = gib * kGiB};
}
inline std::vector<DeviceIndex> devices_of(const PlacementAnswer& answer) {
  auto* placed = std::get_if<Placed>(&answer);
  return placed ? placed->devices : std::vector<DeviceIndex>{};
}
inline std::string reason_of(const PlacementAnswer& answer) {
  auto* never = std::get_if<NeverFits>(&answer);
  return never ? never->reason : "";
}
inline size_t place_of(const PlacementAnswer& answer) {
  auto* queued = std::get_if<Queued>(&answer);
  return queued ? queued->place : 0;
}

}  // namespace gpuwire::scheduler
