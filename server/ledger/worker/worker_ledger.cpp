#include "server/ledger/worker/worker_ledger.hpp"

#include <fmt/format.h>

#include "server/driver_table.hpp"

namespace gpuwire::server {
namespace {

std::vector<uint32_t> columns_of(const SessionSpec& spec) {
  std::vector<uint32_t> columns;
  for (const SessionSpec::Device& device : spec.devices) columns.push_back(device.index);
  return columns;
}

}  // namespace

tl::expected<std::unique_ptr<WorkerLedger>, std::string> WorkerLedger::open(OwnedDescriptor page, OwnedDescriptor users,
                                                                            const SessionSpec& spec,
                                                                            const DriverTable& driver, bool software,
                                                                            ipc::Channel& broker,
                                                                            ipc::BlockingRequests& requests) {
  auto mapping = SharedPage<TenantPage>::map(std::move(page));
  if (!mapping) return tl::unexpected(mapping.error());
  auto of_users = SharedPage<UserPage>::map_if_any(std::move(users));
  if (!of_users) return tl::unexpected(of_users.error());
  if (spec.ledger_slot == kLeftSlot || spec.ledger_slot >= kPageSlotsMax)
    return tl::unexpected(fmt::format("slot {} of the tenant's page", spec.ledger_slot));
  for (const SessionSpec::Device& device : spec.devices) {
    if (device.index >= kPageDevicesMax)
      return tl::unexpected(fmt::format("device {}: a server has {} at most", device.index, kPageDevicesMax));
  }
  return std::unique_ptr<WorkerLedger>(
      new WorkerLedger(std::move(*mapping), std::move(*of_users), spec, driver, software, broker, requests));
}

WorkerLedger::WorkerLedger(SharedPage<TenantPage> page, SharedPage<UserPage> users, const SessionSpec& spec,
                           const DriverTable& driver, bool software, ipc::Channel& broker,
                           ipc::BlockingRequests& requests)
    : bare_(driver),
      page_(std::move(page)),
      users_(std::move(users)),
      asker_(broker, requests),
      ledger_(*page_, spec.ledger_slot, &asker_),
      driver_(driver, ledger_, {.columns = columns_of(spec), .software = software}) {
  if (users_.get()) ledger_.set_user(*users_, spec.ledger_user);
}

bool WorkerLedger::charge_warm_primary() {
  if (driver_.charge_warm_primary()) return true;
  bare_.cuCtxSetCurrent(nullptr);
  bare_.cuDevicePrimaryCtxRelease_v2(0);
  return false;
}

}  // namespace gpuwire::server
