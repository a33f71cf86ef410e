// The driver's table with wrappers that charge the session's ledger in every function that takes or releases memory.
#pragma once

#include <memory>
#include <vector>

#include "server/ledger/worker/session_ledger.hpp"

namespace gpuwire::server {

struct DriverTable;
struct LedgerParts;

// At most one instance in a process, because driver functions have no argument to pass it in. `charges` in protocol/api
// names the charged functions, and why the others are not charged. A call that would exceed the quota returns
// CUDA_ERROR_OUT_OF_MEMORY and has no effect.
class LedgeredDriver {
 public:
  struct Settings {
    // The page's columns, by the driver's index of the device.
    std::vector<uint32_t> columns;
    bool software = false;
  };
  // `driver` and `ledger` outlive this object.
  LedgeredDriver(const DriverTable& driver, SessionLedger& ledger, Settings settings);
  ~LedgeredDriver();
  LedgeredDriver(const LedgeredDriver&) = delete;
  LedgeredDriver& operator=(const LedgeredDriver&) = delete;

  const DriverTable& table() const { return *table_; }
  // Charges the primary context of device 0, which was retained before the session. False: the context does not fit;
  // the caller releases it.
  bool charge_warm_primary();
  // Stops this object's thread from calling the driver. Called before the process ends.
  void rest();

 private:
  std::unique_ptr<LedgerParts> parts_;
  std::unique_ptr<DriverTable> table_;
};

}  // namespace gpuwire::server
