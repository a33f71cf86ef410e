#include "scheduler/memory_ledger.hpp"

#include <algorithm>

namespace gpuwire::scheduler {
namespace {

uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

uint64_t to_slab(uint64_t bytes) {
  return sum(bytes, kAllowanceSlabBytes - 1) / kAllowanceSlabBytes * kAllowanceSlabBytes;
}

std::string number(uint64_t bytes) { return std::to_string(bytes); }

}  // namespace

MemoryLedger::MemoryLedger(std::vector<uint64_t> devices) {
  for (uint64_t bytes : devices) devices_.push_back({.bytes = bytes, .accounts = {}});
}

const MemoryLedger::Account* MemoryLedger::find(TenantId tenant, DeviceIndex device) const {
  if (device >= devices_.size()) return nullptr;
  auto found = devices_[device].accounts.find(tenant);
  return found == devices_[device].accounts.end() ? nullptr : &found->second;
}

uint64_t MemoryLedger::room(const Device& device, TenantId tenant, bool claims, uint64_t optional_bytes) {
  uint64_t others = optional_bytes;
  for (const auto& [other, account] : device.accounts) {
    if (other == tenant) continue;
    others = sum(others,
                 claims ? std::max(account.share.guaranteed_bytes, account.allowance_bytes) : account.allowance_bytes);
  }
  return difference(device.bytes, others);
}

uint64_t MemoryLedger::reach(const Device& device, TenantId tenant, const Account& account, uint64_t optional_bytes) {
  // Within its guarantee a tenant does not depend on others' claims; beyond it, all claims come first.
  uint64_t guaranteed = std::min(account.share.guaranteed_bytes, room(device, tenant, false, optional_bytes));
  return std::max(guaranteed, std::min(account.share.limit_bytes, room(device, tenant, true, optional_bytes)));
}

std::optional<std::string> MemoryLedger::set_tenant(TenantId tenant, DeviceIndex device, MemoryShare share) {
  if (device >= devices_.size()) return "there is no device " + number(device);
  if (share.guaranteed_bytes > share.limit_bytes)
    return "a guarantee of " + number(share.guaranteed_bytes) + " bytes above the limit of " +
           number(share.limit_bytes);
  Device& on = devices_[device];
  uint64_t guaranteed = share.guaranteed_bytes;
  for (const auto& [other, account] : on.accounts) {
    if (other != tenant) guaranteed = sum(guaranteed, account.share.guaranteed_bytes);
  }
  if (guaranteed > on.bytes)
    return "guarantees of " + number(guaranteed) + " bytes in all on device " + number(device) + ", which has " +
           number(on.bytes);
  Account& account = on.accounts[tenant];
  account.share = share;
  uint64_t at_once = std::min(share.guaranteed_bytes, room(on, tenant, false, on.optional_bytes));
  account.allowance_bytes = std::max(account.allowance_bytes, at_once);
  return std::nullopt;
}

void MemoryLedger::remove_tenant(TenantId tenant) {
  for (Device& device : devices_) device.accounts.erase(tenant);
}

std::optional<uint64_t> MemoryLedger::raise(TenantId tenant, DeviceIndex device, uint64_t used_bytes,
                                            uint64_t more_bytes) {
  if (!find(tenant, device)) return std::nullopt;
  Account& account = devices_[device].accounts[tenant];
  uint64_t wanted = sum(used_bytes, more_bytes);
  if (wanted > account.share.limit_bytes) return std::nullopt;
  if (wanted <= account.allowance_bytes) return account.allowance_bytes;
  uint64_t most = reach(devices_[device], tenant, account);
  if (wanted > most) return std::nullopt;
  return account.allowance_bytes = std::min(most, to_slab(wanted));
}

void MemoryLedger::restore(TenantId tenant, DeviceIndex device, uint64_t allowance_bytes) {
  if (device >= devices_.size()) return;
  Account& account = devices_[device].accounts[tenant];
  const uint64_t most = room(devices_[device], tenant, false, devices_[device].optional_bytes);
  account.allowance_bytes = std::max(account.allowance_bytes, std::min(allowance_bytes, most));
}

uint64_t MemoryLedger::lower_target(TenantId tenant, DeviceIndex device, uint64_t used_bytes) const {
  const Account* account = find(tenant, device);
  if (!account) return 0;
  return std::min(account->allowance_bytes, std::max(account->share.guaranteed_bytes, used_bytes));
}

void MemoryLedger::lowered(TenantId tenant, DeviceIndex device, uint64_t allowance_bytes) {
  if (!find(tenant, device)) return;
  Account& account = devices_[device].accounts[tenant];
  account.allowance_bytes = std::min(account.allowance_bytes, allowance_bytes);
}

void MemoryLedger::set_optional(DeviceIndex device, uint64_t bytes) {
  if (device < devices_.size()) devices_[device].optional_bytes = bytes;
}

uint64_t MemoryLedger::optional_bytes(DeviceIndex device) const {
  return device < devices_.size() ? devices_[device].optional_bytes : 0;
}

uint64_t MemoryLedger::optional_max(DeviceIndex device) const {
  if (device >= devices_.size()) return 0;
  uint64_t claims = 0;
  for (const auto& [tenant, account] : devices_[device].accounts)
    claims = sum(claims, std::max(account.share.guaranteed_bytes, account.allowance_bytes));
  return difference(devices_[device].bytes, claims);
}

// A binary search for the least amount that helps: reach() only grows as the optional memory shrinks.
std::optional<uint64_t> MemoryLedger::lacking(TenantId tenant, DeviceIndex device, uint64_t used_bytes,
                                              uint64_t more_bytes) const {
  const Account* account = find(tenant, device);
  if (!account) return std::nullopt;
  const Device& on = devices_[device];
  const uint64_t wanted = sum(used_bytes, more_bytes);
  auto fits = [&](uint64_t optional_bytes) { return wanted <= reach(on, tenant, *account, optional_bytes); };
  const bool there_is_room = wanted <= account->allowance_bytes || fits(on.optional_bytes);
  if (wanted > account->share.limit_bytes || there_is_room || !fits(0)) return std::nullopt;
  uint64_t stays = 0, too_much = on.optional_bytes;
  while (too_much - stays > 1) {
    const uint64_t middle = stays + (too_much - stays) / 2;
    (fits(middle) ? stays : too_much) = middle;
  }
  return on.optional_bytes - stays;
}

uint64_t MemoryLedger::allowance(TenantId tenant, DeviceIndex device) const {
  const Account* account = find(tenant, device);
  return account ? account->allowance_bytes : 0;
}

MemoryShare MemoryLedger::share(TenantId tenant, DeviceIndex device) const {
  const Account* account = find(tenant, device);
  return account ? account->share : MemoryShare{0, 0};
}

uint64_t MemoryLedger::available(TenantId tenant, DeviceIndex device, uint64_t used_bytes) const {
  const Account* account = find(tenant, device);
  if (!account) return 0;
  uint64_t most = std::min(account->share.limit_bytes,
                           std::max(account->allowance_bytes, reach(devices_[device], tenant, *account)));
  return difference(most, used_bytes);
}

std::string MemoryLedger::check() const {
  for (size_t i = 0; i < devices_.size(); ++i) {
    uint64_t allowed = 0, guaranteed = 0;
    for (const auto& [tenant, account] : devices_[i].accounts) {
      if (account.share.guaranteed_bytes > account.share.limit_bytes)
        return "device " + number(i) + ": a guarantee above its limit";
      allowed = sum(allowed, account.allowance_bytes);
      guaranteed = sum(guaranteed, account.share.guaranteed_bytes);
    }
    if (allowed > devices_[i].bytes)
      return "device " + number(i) + ": allowances of " + number(allowed) + " bytes, and it has " +
             number(devices_[i].bytes);
    if (guaranteed > devices_[i].bytes)
      return "device " + number(i) + ": guarantees of " + number(guaranteed) + " bytes, and it has " +
             number(devices_[i].bytes);
  }
  return {};
}

}  // namespace gpuwire::scheduler
