// One session's hold on its tenant's page: reserves before the driver is called, gives back when the driver has.
#pragma once

#include <cstdint>
#include <mutex>

#include "server/ledger/page/tenant_page.hpp"

namespace gpuwire::server {

// Who raises allowances: the broker, over the worker's IPC message socket.
class AllowanceSource {
 public:
  virtual ~AllowanceSource() = default;
  // `bytes` more are wanted than the allowance has. True: it has been raised. Waits a bounded time. Any thread.
  virtual bool ask(uint32_t column, uint64_t bytes) = 0;
};

inline constexpr unsigned kAllowanceAsksMax = 8;  // other sessions of the tenant may be quicker to take what was raised
inline constexpr uint32_t kTurnWaitUs = 2000;     // for another worker's turn to end; then it is not waited for

// Any thread.
class SessionLedger {
 public:
  // `source` may be null: then the allowance is all there is. It and the page outlive the ledger.
  SessionLedger(TenantPage& page, uint32_t slot, AllowanceSource* source) : page_(page), slot_(slot), source_(source) {}
  SessionLedger(const SessionLedger&) = delete;
  SessionLedger& operator=(const SessionLedger&) = delete;

  // False: it would exceed the tenant's limit, or the memory is others' to have.
  bool reserve(uint32_t column, uint64_t bytes);
  void give_back(uint32_t column, uint64_t bytes);
  // Of what is held, so much may outlive the session in the hands of others. It stays charged when it is given back
  // here.
  void share(uint32_t column, uint64_t bytes) { page_.column[column].shared[slot_].fetch_add(bytes); }
  void note_import() { page_.slot[slot_].imports.store(1); }

  uint64_t used(uint32_t column) const { return page_.column[column].used[slot_].load(); }
  // What the tenant could reserve now in all, and what its sessions hold of it.
  uint64_t reach(uint32_t column) const;
  uint64_t used_by_tenant(uint32_t column) const { return used_by_all(page_, column); }
  uint64_t limit(uint32_t column) const { return bounded(page_.column[column].limit.load()); }
  uint64_t context_bytes(uint32_t column) const { return bounded(page_.column[column].context_bytes.load()); }

 private:
  bool try_reserve(uint32_t column, uint64_t bytes);

  TenantPage& page_;
  const uint32_t slot_;
  AllowanceSource* const source_;
  std::mutex mutex_;  // one thread of the process takes the turn
};

}  // namespace gpuwire::server
