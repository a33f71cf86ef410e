// An admission's view of memory, with the free bytes that the test sets.
#pragma once

#include <atomic>
#include <map>
#include <set>

#include "server/broker/admission/session_memory.hpp"

namespace gpuwire::test {

struct FreeMemory final : server::SessionMemory {
  explicit FreeMemory(uint64_t bytes) : free(bytes) {}
  uint64_t device_bytes(scheduler::DeviceIndex) const override { return UINT64_MAX; }
  uint64_t free_bytes(scheduler::TenantId, scheduler::DeviceIndex) const override { return free; }
  uint64_t held_bytes(scheduler::TenantId tenant, scheduler::DeviceIndex) const override {
    auto found = held.find(tenant);
    return found == held.end() ? 0 : found->second;
  }
  uint64_t held_bytes(scheduler::SessionId, scheduler::TenantId, scheduler::DeviceIndex) const override { return 0; }
  uint64_t reserved_bytes(scheduler::DeviceIndex) const override { return reserved; }
  bool reserve(scheduler::SessionId session, scheduler::TenantId, const std::string&,
               std::span<const scheduler::DeviceIndex>, uint64_t) override {
    if (gone) return false;
    holders.insert(session);
    return true;
  }
  void release(scheduler::SessionId session) override { holders.erase(session); }

  std::atomic<uint64_t> free, reserved{0};
  std::atomic<bool> gone{false};  // the free memory has just been taken
  std::set<scheduler::SessionId> holders;
  std::map<scheduler::TenantId, uint64_t> held;
};

}  // namespace gpuwire::test
