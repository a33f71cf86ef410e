#include "server/ledger/worker/ledgered_driver.hpp"

#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/context_charges.hpp"
#include "server/ledger/worker/pool_charges.hpp"

namespace gpuwire::server {
namespace {

LedgerParts* the_parts = nullptr;  // set before the first call of a wrapper, cleared after the last

}  // namespace

LedgerParts& ledger_parts() { return *the_parts; }

LedgeredDriver::LedgeredDriver(const DriverTable& driver, SessionLedger& ledger, Settings settings)
    : parts_(std::make_unique<LedgerParts>(driver, ledger, std::move(settings.columns), settings.software)),
      table_(std::make_unique<DriverTable>(driver)) {
  the_parts = parts_.get();
  wrap_memory(*table_);
  wrap_host_memory(*table_);
  wrap_virtual_memory(*table_);
  wrap_pools(*table_);
  wrap_graphs(*table_);
  wrap_launches(*table_);
  wrap_streams(*table_);
  wrap_arrays(*table_);
  wrap_modules(*table_);
  wrap_libraries(*table_);
  wrap_contexts(*table_);
  wrap_memory_info(*table_);
}

LedgeredDriver::~LedgeredDriver() { the_parts = nullptr; }

void LedgeredDriver::rest() { parts_->pools->rest(); }

bool LedgeredDriver::charge_warm_primary() { return parts_->contexts->charge_warm_primary(); }

}  // namespace gpuwire::server
