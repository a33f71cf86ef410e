// MemoryLedger decides how much memory of each GPU each tenant may take: guarantees, limits, and memory lent beyond
// guarantees. Pure logic; the broker owns it.
//
// A tenant's sessions take memory by themselves up to the tenant's *allowance* on a device, which they read from shared
// memory (server/ledger/). This ledger decides the allowances. On each device their sum never exceeds the device's
// memory, and guaranteed memory is never lent: beyond its guarantee a tenant gets what is left when all others have
// max(guaranteed, allowance). A guarantee has to wait for the return of lent memory only if it was set or raised while
// that memory was lent. An allowance above a lowered limit stays until the caller lowers it.
//
// Beside the tenants the server holds optional memory, which it can release: it uses memory that neither allowances nor
// guarantees need (optional_max). Tenants get none of it before the server has released it, and lacking() returns how
// much it has to release.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

struct MemoryShare {
  uint64_t guaranteed_bytes = 0;
  // >= guaranteed.
  uint64_t limit_bytes = UINT64_MAX;
  bool operator==(const MemoryShare&) const = default;
};

// An allowance grows by at least this much where there is room, so that a session does not ask the broker for each
// allocation.
inline constexpr uint64_t kAllowanceSlabBytes = 64u << 20;

class MemoryLedger {
 public:
  // `devices`: the bytes of each that tenants may have.
  explicit MemoryLedger(std::vector<uint64_t> devices);

  // Returns an error, without a change, if there is no such device, the guarantee is above the limit, or the guarantees
  // together exceed the device.
  std::optional<std::string> set_tenant(TenantId tenant, DeviceIndex device, MemoryShare share);
  void remove_tenant(TenantId tenant);

  // The tenant's sessions hold `used` bytes and want `more`. Returns the new allowance, at least used + more; nothing:
  // that is above its limit, or others hold the memory within their rights.
  std::optional<uint64_t> raise(TenantId tenant, DeviceIndex device, uint64_t used_bytes, uint64_t more_bytes);
  // Restores an earlier allowance, as far as the device has room beside the others', regardless of the tenant's limit.
  // Precondition: set_tenant(), which sets guarantees, was not called yet.
  void restore(TenantId tenant, DeviceIndex device, uint64_t allowance_bytes);
  // Returns the lower allowance that a tenant which uses at most `used` could have. The caller writes it to the shared
  // memory and then calls lowered().
  uint64_t lower_target(TenantId tenant, DeviceIndex device, uint64_t used_bytes) const;
  // Never raises the allowance: a larger value is cut to the present one.
  void lowered(TenantId tenant, DeviceIndex device, uint64_t allowance_bytes);

  uint64_t allowance(TenantId tenant, DeviceIndex device) const;
  // Returns the tenant's share; zero for an unknown tenant.
  MemoryShare share(TenantId tenant, DeviceIndex device) const;

  // Sets the server's optional memory on the device; it may exceed optional_max().
  void set_optional(DeviceIndex device, uint64_t bytes);
  uint64_t optional_bytes(DeviceIndex device) const;
  // Returns the bytes that neither allowances nor guarantees need.
  uint64_t optional_max(DeviceIndex device) const;
  // Returns how much optional memory has to be released before this raise() succeeds. Nothing: it would not help, or is
  // not needed.
  std::optional<uint64_t> lacking(TenantId tenant, DeviceIndex device, uint64_t used_bytes, uint64_t more_bytes) const;
  // Returns how many more bytes the tenant could get now.
  uint64_t available(TenantId tenant, DeviceIndex device, uint64_t used_bytes) const;
  size_t device_count() const { return devices_.size(); }
  uint64_t device_bytes(DeviceIndex device) const { return device < devices_.size() ? devices_[device].bytes : 0; }
  // For tests: empty, or the invariant that does not hold.
  std::string check() const;

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
  // Returns the largest allowance of the tenant beside `optional_bytes` of the server's, regardless of its limit;
  // `claims`: the others keep their guarantees, too.
  static uint64_t room(const Device& device, TenantId tenant, bool claims, uint64_t optional_bytes);
  static uint64_t reach(const Device& device, TenantId tenant, const Account& account, uint64_t optional_bytes);
  static uint64_t reach(const Device& device, TenantId tenant, const Account& account) {
    return reach(device, tenant, account, device.optional_bytes);
  }

  std::vector<Device> devices_;
};

}  // namespace gpuwire::scheduler
