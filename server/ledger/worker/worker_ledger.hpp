// A worker's share in its tenant's ledger: the page that came with the session spec, the driver behind it, and the way
// to the broker.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>

#include <tl/expected.hpp>

#include "server/base/host_memory.hpp"
#include "server/ipc/session_spec.hpp"
#include "server/ledger/worker/allowance_asker.hpp"
#include "server/ledger/worker/ledgered_driver.hpp"
#include "server/ledger/worker/session_ledger.hpp"
#include "server/ledger/page/tenant_page.hpp"

namespace gpuwire::server {

// The tenant's column of host memory, for the worker's own memory for its session. Any thread.
class HostAccount final : public HostMemory {
 public:
  explicit HostAccount(SessionLedger& ledger) : ledger_(ledger) {}
  bool reserve(uint64_t bytes) override { return ledger_.reserve(kHostColumn, bytes); }
  void give_back(uint64_t bytes) override { ledger_.give_back(kHostColumn, bytes); }

 private:
  SessionLedger& ledger_;
};

// Made once, before the session; lives as long as the process.
class WorkerLedger {
 public:
  // `users`: the page of the tenant's users; none from a server that bounds no users. `driver` and the objects that
  // lead to the broker outlive it. The error ends the session: its memory would not be charged.
  static tl::expected<std::unique_ptr<WorkerLedger>, std::string> open(OwnedDescriptor page, OwnedDescriptor users,
                                                                       const SessionSpec& spec,
                                                                       const DriverTable& driver, bool software,
                                                                       ipc::Channel& broker,
                                                                       ipc::BlockingRequests& requests);

  const DriverTable& table() const { return driver_.table(); }
  HostMemory& host_memory() { return host_; }
  // Runs an allocation within the tenant's existing grant.
  template <class Allocate>
  CUresult within_grant(Allocate&& allocate) {
    const SessionLedger::Ahead within(SessionLedger::Grant::as_it_is);
    return allocate();
  }
  // Likewise one for which the tenant may be granted more, if that is there for it to have at once. The client may hold
  // the memory for kAheadHeld.
  template <class Allocate>
  CUresult beyond_grant(Allocate&& allocate) {
    const SessionLedger::Ahead beyond(SessionLedger::Grant::may_grow);
    const CUresult result = allocate();
    if (result == CUDA_SUCCESS) ledger_.note_held_ahead();
    return result;
  }
  // May the session's client keep memory that its program has freed?
  void note_keeping(bool keeps) { ledger_.note_keeping(keeps); }
  // False: the context that the worker has ready does not fit the tenant's quota; it has been given back to the driver.
  bool charge_warm_primary();
  // Before the process ends.
  void rest() { driver_.rest(); }

 private:
  WorkerLedger(SharedPage<TenantPage> page, SharedPage<UserPage> users, const SessionSpec& spec,
               const DriverTable& driver, bool software, ipc::Channel& broker, ipc::BlockingRequests& requests);

  const DriverTable& bare_;
  SharedPage<TenantPage> page_;
  SharedPage<UserPage> users_;
  AllowanceAsker asker_;
  SessionLedger ledger_;
  HostAccount host_{ledger_};
  LedgeredDriver driver_;
};

}  // namespace gpuwire::server
