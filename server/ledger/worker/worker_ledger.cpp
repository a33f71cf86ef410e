#include "server/ledger/worker/worker_ledger.hpp"

#include <fmt/format.h>

#include "server/driver_table.hpp"

namespace gpuwire::server {
namespace {

std::vector<uint32_t> columns_of(const SessionSpec& order) {
  std::vector<uint32_t> columns;
  for (const SessionSpec::Device& device : order.devices) columns.push_back(device.index);
  return columns;
}

}  // namespace

tl::expected<std::unique_ptr<WorkerLedger>, std::string> WorkerLedger::open(OwnedDescriptor page,
                                                                            const SessionSpec& order,
                                                                            const DriverTable& driver, bool software,
                                                                            ipc::Channel& broker,
                                                                            ipc::BlockingRequests& requests) {
  auto mapping = SharedPage<TenantPage>::map(std::move(page));
  if (!mapping) return tl::unexpected(mapping.error());
  if (order.ledger_slot == kLeftSlot || order.ledger_slot >= kPageSlotsMax)
    return tl::unexpected(fmt::format("slot {} of the tenant's page", order.ledger_slot));
  for (const SessionSpec::Device& device : order.devices) {
    if (device.index >= kPageDevicesMax)
      return tl::unexpected(fmt::format("device {}: a server has {} at most", device.index, kPageDevicesMax));
  }
  return std::unique_ptr<WorkerLedger>(
      new WorkerLedger(std::move(*mapping), order, driver, software, broker, requests));
}

WorkerLedger::WorkerLedger(SharedPage<TenantPage> page, const SessionSpec& order, const DriverTable& driver,
                           bool software, ipc::Channel& broker, ipc::BlockingRequests& requests)
    : bare_(driver),
      page_(std::move(page)),
      asker_(broker, requests),
      ledger_(*page_, order.ledger_slot, &asker_),
      driver_(driver, ledger_, {.columns = columns_of(order), .software = software}) {}

bool WorkerLedger::charge_warm_primary() {
  if (driver_.charge_warm_primary()) return true;
  bare_.cuCtxSetCurrent(nullptr);
  bare_.cuDevicePrimaryCtxRelease_v2(0);
  return false;
}

}  // namespace gpuwire::server
