#include "server/driver/driver_stack.hpp"

#include <utility>

#include "server/gate/gated_driver.hpp"

namespace gpuwire::server {

GatedDriver::GatedDriver(SharedPage<SessionPage> mapped, OwnedDescriptor bell, const DriverTable& behind,
                         unsigned cores)
    : page(std::move(mapped)),
      doorbell(std::move(bell)),
      table(behind),
      gate({.page = page.get(), .doorbell = doorbell.get(), .driver = &behind, .cores = cores}) {
  put_gate_before(table, gate);
}

// From the library outwards: each layer wraps the layers so far.
tl::expected<DriverStack, std::string> DriverStack::open(ipc::SessionDescriptors& descriptors, const SessionSpec& spec,
                                                         const DriverTable& library, UploadOrder& order,
                                                         IpcGuard& guard, const Settings& settings) {
  DriverStack stack;
  const DriverTable* front = &library;
  // For the evictable memory; the gate is made behind it.
  const auto gate = std::make_shared<const Gate*>(nullptr);
  if (spec.evicts) {
    stack.evictable_ = std::make_unique<EvictableMemory>(
        library, EvictableMemory::Settings{.captures = [gate] { return *gate && (*gate)->captures(); }});
    stack.evictable_table_ = std::make_unique<DriverTable>(library);
    stack.evictable_->put_before(*stack.evictable_table_);
    front = stack.evictable_table_.get();
  }
  if (descriptors.session_page) {
    auto page = SharedPage<SessionPage>::map(std::move(descriptors.session_page));
    if (!page) return tl::unexpected(page.error());
    stack.behind_gate_ = std::make_unique<DriverTable>(*front);
    front = stack.behind_gate_.get();
    stack.gated_ =
        std::make_unique<GatedDriver>(std::move(*page), std::move(descriptors.doorbell), *front, settings.cores);
    *gate = &stack.gated_->gate;
    front = &stack.gated_->table;
  }
  if (descriptors.tenant_page) {
    auto ledger = WorkerLedger::open(std::move(descriptors.tenant_page), std::move(descriptors.user_page), spec, *front,
                                     settings.software, settings.broker, settings.requests);
    if (!ledger) return tl::unexpected(ledger.error());
    stack.ledger_ = std::move(*ledger);
    front = &stack.ledger_->table();
  }
  stack.table_ = std::make_unique<DriverTable>(*front);
  guard.put_before(*stack.table_);
  order.put_before(*stack.table_);
  // Without a gate before the functions that give work, the profiler wraps them directly.
  stack.profiler_ = std::make_unique<GpuProfiler>(
      stack.gated_ ? *stack.behind_gate_ : *stack.table_,
      GpuProfiler::Settings{
          .cupti = settings.cupti,
          .software = settings.software,
          .note = [&broker = settings.broker](std::string text) { broker.send(ipc::Note{std::move(text)}); }});
  return stack;
}

}  // namespace gpuwire::server
