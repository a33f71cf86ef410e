// The driver with every function that takes or gives back memory charged to the session's ledger.
#pragma once

#include <memory>
#include <vector>

#include "server/ledger/worker/session_ledger.hpp"

namespace gpuwire::server {

struct DriverTable;
struct LedgerParts;

// One at a time in a process: driver functions have no room for an argument of ours. Which functions are charged, and
// why the others are not: `charges` in protocol/api. Over the quota a call answers CUDA_ERROR_OUT_OF_MEMORY and has
// done nothing.
class LedgeredDriver {
 public:
  struct Settings {
    std::vector<uint32_t> columns;  // of the page, for each device as the driver counts them
    bool software = false;
  };
  // `driver` and `ledger` outlive it.
  LedgeredDriver(const DriverTable& driver, SessionLedger& ledger, Settings settings);
  ~LedgeredDriver();
  LedgeredDriver(const LedgeredDriver&) = delete;
  LedgeredDriver& operator=(const LedgeredDriver&) = delete;

  const DriverTable& table() const { return *table_; }
  // Charges the primary context of device 0, which was retained before the session. False: it does not fit; the caller
  // releases it.
  bool charge_warm_primary();
  // No thread of it calls the driver any more: the process is about to end.
  void rest();

 private:
  std::unique_ptr<LedgerParts> parts_;
  std::unique_ptr<DriverTable> table_;
};

}  // namespace gpuwire::server
