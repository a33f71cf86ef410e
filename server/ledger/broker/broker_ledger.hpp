// The broker's half of the ledger: makes the tenants' pages, decides allowances, and tells others who has how much.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "scheduler/memory_ledger.hpp"
#include "server/broker/keeper/keeping.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/control/metrics_source.hpp"
#include "server/ledger/page/tenant_page.hpp"

namespace gpuwire::server {

// How long a worker waits for memory that others may give back, before its program hears CUDA_ERROR_OUT_OF_MEMORY.
inline constexpr std::chrono::milliseconds kMemoryShortage{300};
inline constexpr std::chrono::milliseconds kMemoryShortageLook{10};
inline constexpr size_t kMemoryWaitersMax = 1024, kMemoryWaitersPerSessionMax = 16;

// The broker's thread only.
class BrokerLedger final : public SessionAttachments, public MetricsSource {
 public:
  struct Settings {
    unsigned spare_workers = 1;     // how many contexts are kept ready that are no tenant's
    EntryStore* keeping = nullptr;  // outlives it; null: nothing outlives the broker
    uint64_t host_bytes = 0;        // host memory of a tenant whose configuration says nothing; 0: no bound
  };
  // `control` outlives it.
  BrokerLedger(boost::asio::io_context& io, SessionControl& control, Settings settings)
      : control_(control), settings_(settings), timer_(io) {}

  void devices_known(std::span<const ServerDevice> devices) override;
  void tenants_changed(const TenantDirectory& tenants) override;
  tl::expected<void, std::string> attach(const SessionRecord& session, SessionSpec& order,
                                         IpcMessage& message) override;
  tl::expected<void, std::string> attach_management(const SessionRecord& session, SessionSpec& order,
                                                    IpcMessage& message) override;
  void note(const SessionRecord& session, KeptSession& kept) const override;
  void restore(std::vector<KeptEntry>& entries, const TenantDirectory& tenants) override;
  tl::expected<void, std::string> adopt(const SessionRecord& session, const KeptSession& kept,
                                        KeptEntry& descriptors) override;
  void all_adopted() override;
  void ended(const SessionRecord& session) override;
  bool heard(const SessionRecord& session, IpcMessage& message) override;

  void add(const SessionRecord& session, SessionMetrics& figures) override;
  void add(Snapshot& snapshot) override;
  // What the ledger may give out on the device.
  uint64_t device_bytes(scheduler::DeviceIndex device) const { return ledger_ ? ledger_->device_bytes(device) : 0; }
  // What the session holds of this machine's memory, as its worker says.
  uint64_t host_bytes(const SessionRecord& session) const;
  // How much could be reserved for this tenant now (Placement::FreeBytes).
  uint64_t free_bytes(scheduler::TenantId tenant, scheduler::DeviceIndex device) const;

 private:
  struct TenantState {
    std::string name;
    uint64_t host_bytes = 0;                         // of host memory; 0: no bound
    std::optional<PageMapping> page;                 // while it has sessions
    std::optional<AllowanceRecord> kept;             // of the page's allowances, where something outlives the broker
    uint32_t slots_used = 0;                         // those from here on were never given out since the page was made
    std::map<scheduler::SessionId, uint32_t> slots;  // kLeftSlot: a management session, which has none
  };
  struct Waiter {
    scheduler::SessionId session;
    scheduler::TenantId tenant;
    uint32_t column;
    uint64_t bytes;
    std::array<uint8_t, 16> id;
    std::chrono::steady_clock::time_point until;
  };
  uint64_t free_beyond(scheduler::TenantId tenant, scheduler::DeviceIndex device, uint64_t used_bytes) const;
  enum class Raised : uint8_t { yes, over_limit, short_of_memory };

  tl::expected<void, std::string> hand_page(const SessionRecord& session, uint32_t slot, SessionSpec& order,
                                            IpcMessage& message);
  tl::expected<TenantState*, std::string> with_page(scheduler::TenantId tenant);
  std::optional<uint32_t> free_slot(const TenantState& state) const;
  void keep(TenantState& state);
  void let_page_go(TenantState& state);
  void write_allowance(TenantState& state, scheduler::DeviceIndex device, uint64_t bytes);
  uint64_t used(scheduler::TenantId tenant, scheduler::DeviceIndex device) const;
  Raised raise(scheduler::TenantId tenant, scheduler::DeviceIndex device, uint64_t bytes);
  bool lent_to_others(scheduler::TenantId tenant, scheduler::DeviceIndex device) const;
  void take_back(scheduler::TenantId tenant, scheduler::DeviceIndex device);
  void write_metrics(scheduler::DeviceIndex device);
  void add(const TenantState& state, scheduler::TenantId tenant, TenantMetrics& figures) const;
  void answer(scheduler::SessionId session, const std::array<uint8_t, 16>& id, bool yes);
  void look_at_waiters();
  void await_next_look();

  SessionControl& control_;
  const Settings settings_;
  boost::asio::steady_timer timer_;
  std::optional<scheduler::MemoryLedger> ledger_;  // from devices_known() on
  std::vector<uint64_t> context_bytes_, totals_;   // by device
  std::map<scheduler::TenantId, TenantState> tenants_;
  std::list<Waiter> waiters_;  // oldest first
  bool looking_ = false;
};

}  // namespace gpuwire::server
