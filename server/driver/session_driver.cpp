#include "server/driver/session_driver.hpp"

#include <utility>

#include "server/gate/gated_driver.hpp"

namespace gpuwire::server {

GatedDriver::GatedDriver(MappedPage mapped, OwnedDescriptor bell, const DriverTable& behind, unsigned cores)
    : page(std::move(mapped)),
      doorbell(std::move(bell)),
      table(behind),
      gate({.page = page.get(), .doorbell = doorbell.get(), .driver = &behind, .cores = cores}) {
  put_gate_before(table, gate);
}

tl::expected<SessionDriver, std::string> SessionDriver::open(IpcMessage& message, const SessionSpec& order,
                                                             const DriverTable& behind, const Settings& settings) {
  SessionDriver driver;
  if (OwnedDescriptor descriptor = take(message, SpecDescriptor::session_page)) {
    auto page = MappedPage::map(std::move(descriptor));
    if (!page) return tl::unexpected(page.error());
    driver.gated = std::make_unique<GatedDriver>(std::move(*page), take(message, SpecDescriptor::doorbell), behind,
                                                 settings.cores);
  }
  if (OwnedDescriptor page = take(message, SpecDescriptor::tenant_page)) {
    auto ledger = WorkerLedger::open(std::move(page), order, driver.gated ? driver.gated->table : behind,
                                     settings.software, settings.broker);
    if (!ledger) return tl::unexpected(ledger.error());
    driver.ledger = std::move(*ledger);
  }
  return driver;
}

}  // namespace gpuwire::server
