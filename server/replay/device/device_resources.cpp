#include "server/replay/device/device_resources.hpp"

#include <algorithm>
#include <cstring>

namespace gpuwire::server {

CUdevResource DeviceResources::seal(const CUdevResource& native) {
  CUdevResource sealed{};
  sealed.type = native.type;
  if (native.type == CU_DEV_RESOURCE_TYPE_INVALID) return sealed;
  std::memcpy(sealed._oversize, native._oversize, sizeof sealed._oversize);
  auto known = std::find_if(entries_.begin(), entries_.end(),
                            [&](const Entry& entry) { return !std::memcmp(&entry.native, &native, sizeof native); });
  uint64_t ticket = known == entries_.end() ? next_ticket_++ : known->ticket;
  if (known == entries_.end()) {
    if (entries_.size() >= kDeviceResourcesMax) entries_.pop_front();
    entries_.push_back({ticket, native});
  }
  static_assert(sizeof sealed._internal_padding >= sizeof ticket);
  std::memcpy(sealed._internal_padding, &ticket, sizeof ticket);
  return sealed;
}

const CUdevResource* DeviceResources::find(const CUdevResource& sealed) const {
  uint64_t ticket = 0;
  std::memcpy(&ticket, sealed._internal_padding, sizeof ticket);
  auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.ticket == ticket; });
  return found == entries_.end() ? nullptr : &found->native;
}

}  // namespace gpuwire::server
