// A worker's part of its tenant's ledger: the page from the session spec, the wrapped driver, and the requests to the
// broker.
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

// Charges the worker's own memory for its session to the tenant's column of host memory. Any thread.
class HostAccount final : public HostMemory {
 public:
  explicit HostAccount(SessionLedger& ledger) : ledger_(ledger) {}
  bool reserve(uint64_t bytes) override { return ledger_.reserve(kHostColumn, bytes); }
  void give_back(uint64_t bytes) override { ledger_.give_back(kHostColumn, bytes); }

 private:
  SessionLedger& ledger_;
};

// Created once, before the session; lives as long as the process.
class WorkerLedger {
 public:
  // `users`: the page of the tenant's users; empty if the server has none. `driver`, `broker` and `requests` outlive
  // this object. An error ends the session, since its memory would not be charged.
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
  // Runs an allocation for which the tenant's grant may grow by memory that is free at once. The client may hold the
  // memory for kAheadHeld.
  template <class Allocate>
  CUresult beyond_grant(Allocate&& allocate) {
    const SessionLedger::Ahead beyond(SessionLedger::Grant::may_grow);
    const CUresult result = allocate();
    if (result == CUDA_SUCCESS) ledger_.note_held_ahead();
    return result;
  }
  // Records whether the session's client may cache memory that its program has freed.
  void note_keeping(bool keeps) { ledger_.note_keeping(keeps); }
  // False: the worker's prewarmed context does not fit the tenant's quota and has been released.
  bool charge_warm_primary();
  // Stops all threads. Called before the process ends.
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
