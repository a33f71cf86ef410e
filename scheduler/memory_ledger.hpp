// Who may take how much memory of which GPU: guarantees, limits, and what is lent beyond guarantees. Pure logic; the
// broker owns it.
//
// A tenant's sessions take memory by themselves up to the tenant's *allowance* on a device, which stands in memory they
// share (server/ledger/). The ledger here decides allowances. On each device the allowances never exceed what the
// device has, and nothing is lent that a guarantee may ask for: beyond its guarantee a tenant gets what is left when
// all others have max(guaranteed, allowance). Only after a guarantee was set or grown while memory is lent may it have
// to wait until that is back; an allowance above a limit that has shrunk stays until the caller lowers it.
//
// Beside the tenants the server holds memory of which it can do without: it takes what neither allowances nor
// guarantees want (optional_max), tenants are given none of it before it is gone, and lacking() says how much of it is
// to go.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

struct MemoryShare {
  uint64_t guaranteed_bytes = 0;
  uint64_t limit_bytes = UINT64_MAX;  // >= guaranteed
  bool operator==(const MemoryShare&) const = default;
};

// An allowance grows by at least so much where there is room, so that a session asks the broker once in a while and not
// for each allocation.
inline constexpr uint64_t kAllowanceSlabBytes = 64u << 20;

class MemoryLedger {
 public:
  // `devices`: bytes that may be given out on each.
  explicit MemoryLedger(std::vector<uint64_t> devices);

  // Error: there is no such device, the guarantee is above the limit, or the guarantees would not fit the device
  // together; nothing is changed then.
  std::optional<std::string> set_tenant(TenantId tenant, DeviceIndex device, MemoryShare share);
  void remove_tenant(TenantId tenant);

  // The tenant's sessions hold `used` bytes and want `more`: the new allowance, at least used + more; or none: over its
  // limit, or the device's memory is taken by others within their rights.
  std::optional<uint64_t> raise(TenantId tenant, DeviceIndex device, uint64_t used_bytes, uint64_t more_bytes);
  // An allowance of earlier times holds again, as far as the device has room beside the others'; whatever the tenant's
  // limit is. Before set_tenant(), which gives guarantees.
  void restore(TenantId tenant, DeviceIndex device, uint64_t allowance_bytes);
  // What could be taken back from the tenant, which uses no more than `used`: the new, lower allowance. The caller
  // makes it hold in the shared memory and then calls lowered().
  uint64_t lower_target(TenantId tenant, DeviceIndex device, uint64_t used_bytes) const;
  // Never raises: a larger figure is cut to the allowance that there is.
  void lowered(TenantId tenant, DeviceIndex device, uint64_t allowance_bytes);

  uint64_t allowance(TenantId tenant, DeviceIndex device) const;
  MemoryShare share(TenantId tenant, DeviceIndex device) const;  // of an unknown tenant: nothing

  // What the server holds of the device and can do without; may be more than optional_max().
  void set_optional(DeviceIndex device, uint64_t bytes);
  uint64_t optional_bytes(DeviceIndex device) const;
  // What no allowance has and no guarantee may ask for.
  uint64_t optional_max(DeviceIndex device) const;
  // How much of the optional memory has to go before raise() can do this. Nothing: that would not help, or needs not
  // be.
  std::optional<uint64_t> lacking(TenantId tenant, DeviceIndex device, uint64_t used_bytes, uint64_t more_bytes) const;
  // How much more it could get now.
  uint64_t available(TenantId tenant, DeviceIndex device, uint64_t used_bytes) const;
  size_t device_count() const { return devices_.size(); }
  uint64_t device_bytes(DeviceIndex device) const { return device < devices_.size() ? devices_[device].bytes : 0; }
  std::string check() const;  // for tests: empty, or the invariant that does not hold

 private:
  struct Account {
    MemoryShare share;
    uint64_t allowance_bytes = 0;
  };
  struct Device {
    uint64_t bytes = 0;
    uint64_t optional_bytes = 0;
    std::map<TenantId, Account> accounts;
  };
  const Account* find(TenantId tenant, DeviceIndex device) const;
  // The largest allowance that the tenant could have beside `optional_bytes` of the server's, its limit aside;
  // `claims`: the others keep what they are guaranteed, too.
  static uint64_t room(const Device& device, TenantId tenant, bool claims, uint64_t optional_bytes);
  static uint64_t reach(const Device& device, TenantId tenant, const Account& account, uint64_t optional_bytes);
  static uint64_t reach(const Device& device, TenantId tenant, const Account& account) {
    return reach(device, tenant, account, device.optional_bytes);
  }

  std::vector<Device> devices_;
};

}  // namespace gpuwire::scheduler
