// Who may take how much memory of which GPU: guarantees, limits, and what is lent beyond guarantees. Pure logic; the broker owns it.
//
// A tenant's sessions take memory by themselves up to the tenant's *allowance* on a device, which stands in memory they share (server/ledger/). The
// ledger here decides allowances: guaranteed <= allowance <= limit, and on each device the sum over tenants of max(guaranteed, allowance) never
// exceeds what the device has.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

struct MemoryShare {
  uint64_t guaranteed_bytes = 0;
  uint64_t limit_bytes = UINT64_MAX;   // >= guaranteed
  bool operator==(const MemoryShare&) const = default;
};

class MemoryLedger {
 public:
  // `devices`: bytes that may be given out on each.
  explicit MemoryLedger(std::vector<uint64_t> devices);

  // Error: the guarantees would not fit the device together; nothing is changed then.
  std::optional<std::string> set_tenant(TenantId tenant, DeviceIndex device, MemoryShare share);
  void remove_tenant(TenantId tenant);

  // The tenant's sessions hold `used` bytes and want `more`: the new allowance, at least used + more; or none: over its limit, or the device's
  // memory is taken by others within their rights.
  std::optional<uint64_t> raise(TenantId tenant, DeviceIndex device, uint64_t used_bytes, uint64_t more_bytes);
  // What could be taken back from the tenant, which uses no more than `used`: the new, lower allowance. The caller makes it hold in the shared memory and
  // then calls lowered().
  uint64_t lower_target(TenantId tenant, DeviceIndex device, uint64_t used_bytes) const;
  void lowered(TenantId tenant, DeviceIndex device, uint64_t allowance_bytes);

  uint64_t allowance(TenantId tenant, DeviceIndex device) const;
  // How much more it could get now.
  uint64_t available(TenantId tenant, DeviceIndex device, uint64_t used_bytes) const;
  std::string check() const;           // for tests: empty, or the invariant that does not hold

 private:
  struct Account {
    MemoryShare share;
    uint64_t allowance_bytes = 0;
  };
  struct Device {
    uint64_t bytes = 0;
    std::map<TenantId, Account> accounts;
  };
  std::vector<Device> devices_;
};

}  // namespace gpuwire::scheduler
