// The broker's half of the ledger: makes the tenants' pages, decides allowances, and reports the held memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "scheduler/memory_ledger.hpp"
#include "server/base/lifetime.hpp"
#include "server/broker/admission/session_memory.hpp"
#include "server/broker/keeper/keeping.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/broker/suspension/suspension_memory.hpp"
#include "server/broker/worker/prewarmed_contexts.hpp"
#include "server/control/metrics_source.hpp"
#include "server/ipc/request_table.hpp"
#include "server/ledger/page/tenant_page.hpp"
#include "server/ledger/page/user_page.hpp"

namespace gpuwire::server {

// The time for which a request waits for memory that others may release, before its program gets
// CUDA_ERROR_OUT_OF_MEMORY.
inline constexpr std::chrono::milliseconds kMemoryShortage{300};
inline constexpr std::chrono::milliseconds kMemoryShortagePoll{10};
// The time for which a request waits for memory of ending prewarmed workers: a driver needs a while to clean up after a
// process.
inline constexpr std::chrono::milliseconds kPrewarmedEnd{5000};
// The longest wait of a request for memory of sessions that are being suspended.
inline constexpr std::chrono::minutes kSuspensionWait{5};
// The same while none can be suspended because those that may be are not quiet yet.
inline constexpr std::chrono::seconds kQuietWait{5};
// The greatest age of the pages' figures about memory that workers release or take without a message to the broker.
inline constexpr std::chrono::milliseconds kReachPoll{100};
inline constexpr unsigned kReserveAttemptsMax = 3;  // attempts if workers of the tenant take memory concurrently
inline constexpr size_t kMemoryWaitersMax = 1024, kMemoryWaitersPerSessionMax = 16;

// The broker's thread only.
class BrokerLedger final : public SessionAttachments,
                           public MetricsSource,
                           public SessionMemory,
                           public PrewarmedMemory,
                           public SuspensionMemory {
 public:
  struct Settings {
    unsigned prewarmed_workers = 1;  // the number of permanent prewarmed contexts on each device
    EntryStore* keeping = nullptr;   // outlives it; null: nothing outlives the broker
    uint64_t host_bytes = 0;         // the default host memory of a tenant; 0: no bound
    std::chrono::milliseconds shortage = kMemoryShortage;
  };
  // `control` outlives it.
  BrokerLedger(boost::asio::io_context& io, SessionControl& control, Settings settings)
      : control_(control), settings_(settings), timer_(io), reach_timer_(io) {}

  // `prewarmed` outlives this object; without it there are only the permanent prewarmed workers.
  void set_prewarmed(PrewarmedContexts& prewarmed) { prewarmed_contexts_ = &prewarmed; }

  // `relieve`: suspends sessions for a request that finds too little memory. Without it no session is suspended.
  using Relieve = std::function<SuspensionRelief(scheduler::SessionId, scheduler::DeviceIndex, uint64_t bytes)>;
  void set_suspensions(Relieve relieve) { relieve_ = std::move(relieve); }

  void devices_known(std::span<const ServerDevice> devices) override;
  void tenants_changed(const TenantDirectory& tenants) override;
  tl::expected<void, std::string> attach(const SessionRecord& session, SessionSpec& spec,
                                         ipc::SessionDescriptors& descriptors) override;
  tl::expected<void, std::string> attach_management(const SessionRecord& session, SessionSpec& spec,
                                                    ipc::SessionDescriptors& descriptors) override;
  void note(const SessionRecord& session, KeptSession& kept) const override;
  void restore(std::vector<KeptEntry>& entries, const TenantDirectory& tenants) override;
  tl::expected<void, std::string> adopt(const SessionRecord& session, const KeptSession& kept,
                                        KeptEntry& descriptors) override;
  void all_adopted() override;
  void ended(const SessionRecord& session) override;
  bool on_message(const SessionRecord& session, ipc::Message& message) override;

  void add(const SessionRecord& session, SessionMetrics& figures) override;
  void add(Snapshot& snapshot) override;
  uint64_t device_bytes(scheduler::DeviceIndex device) const override {
    return ledger_ ? ledger_->device_bytes(device) : 0;
  }
  uint64_t free_bytes(scheduler::TenantId tenant, scheduler::DeviceIndex device) const override;
  uint64_t held_bytes(scheduler::TenantId tenant, scheduler::DeviceIndex device) const override {
    return held_now(tenant, device);
  }
  uint64_t held_bytes(scheduler::SessionId session, scheduler::TenantId tenant,
                      scheduler::DeviceIndex device) const override;
  bool is_away(scheduler::SessionId session, scheduler::TenantId tenant) const override;
  uint64_t reserved_bytes(scheduler::DeviceIndex device) const override;
  bool reserve(scheduler::SessionId session, scheduler::TenantId tenant, const std::string& user,
               std::span<const scheduler::DeviceIndex> devices, uint64_t bytes) override;
  void release(scheduler::SessionId session) override;
  std::string why_not_released(const SessionRecord& session) const override;
  uint64_t releasable_bytes(const SessionRecord& session) const override;
  uint64_t releasable_bytes(const SessionRecord& session, scheduler::DeviceIndex device) const override;
  uint64_t away_bytes(const SessionRecord& session, scheduler::DeviceIndex device) const override;
  MemoryShortage shortage(const SessionRecord& session, scheduler::DeviceIndex device, uint64_t bytes) const override;
  uint64_t release_memory(const SessionRecord& session) override;
  void offer_memory() override;
  bool take_memory(const SessionRecord& session) override;
  size_t prewarmed_max(scheduler::DeviceIndex device) const override;
  void prewarmed_changed(scheduler::DeviceIndex device, size_t contexts) override;
  // Reads the pages' figures again, because tenants take and release memory without a message.
  void refresh();
  // Returns the session's host memory, as its worker reports it.
  uint64_t host_bytes(const SessionRecord& session) const;
  // For tests: the number of sums over a tenant's page.
  uint64_t page_sums() const { return page_sums_; }
  // Charges the tenant's chunk store to its host memory, even while the tenant has no sessions.
  void charge_chunks(scheduler::TenantId tenant, uint64_t bytes);

 private:
  struct TenantState {
    std::string name;
    TenantConfiguration settings;                   // for the bounds of its users
    uint64_t host_bytes = 0;                        // of host memory; 0: no bound
    uint64_t chunk_bytes = 0;                       // of it: the chunk store's
    std::optional<SharedPage<TenantPage>> page;     // while it has sessions
    std::optional<SharedPage<UserPage>> users;      // beside it
    std::optional<SharedPage<AllowancePage>> kept;  // of the page's allowances, where something outlives the broker
    uint32_t slots_used = 0;  // slots from this number on were never assigned since the page was made
    std::map<scheduler::SessionId, uint32_t> slots;       // kLeftSlot: a management session, which has no slot
    std::map<scheduler::SessionId, std::string> user_of;  // the users of sessions that have one; the page has a copy
    // The reservation of each slot's session. The page has a copy, which workers can write.
    std::map<scheduler::DeviceIndex, ReservedBytes> reserved;
  };
  struct Waiter {
    scheduler::SessionId session;
    scheduler::TenantId tenant;
    uint32_t column;
    uint64_t bytes;
    ipc::RequestId request;  // the worker's own number
    std::chrono::steady_clock::time_point since, until;
  };
  // Suspends sessions for the request. Returns how long it may wait for that in all; 0: that does not help.
  std::chrono::milliseconds relieve(const Waiter& waiter);
  // Extends the time of a request that may wait so long.
  void extend(Waiter& waiter, std::chrono::milliseconds relief) const;
  // Returns the memory that a tenant with `held_bytes` could get if `back_bytes` were taken back from others.
  uint64_t free_beyond(scheduler::TenantId tenant, scheduler::DeviceIndex device, uint64_t held_bytes,
                       uint64_t back_bytes) const;
  uint64_t spare(scheduler::TenantId tenant, scheduler::DeviceIndex device, uint64_t held_bytes) const;
  // short_of_memory: others may give back lent memory. prewarmed_end: spares with this memory were told to end.
  enum class Raised : uint8_t { yes, over_limit, short_of_memory, prewarmed_end };
  static bool may_come(Raised raised) { return raised == Raised::short_of_memory || raised == Raised::prewarmed_end; }

  tl::expected<void, std::string> hand_page(const SessionRecord& session, uint32_t slot, SessionSpec& spec,
                                            ipc::SessionDescriptors& descriptors);
  tl::expected<TenantState*, std::string> with_page(scheduler::TenantId tenant);
  std::optional<uint32_t> free_slot(const TenantState& state) const;
  void take_slot(TenantState& state, scheduler::SessionId session, const std::string& user, uint32_t slot);
  // Writes the user of the slot's session, and this user's limit, to the users' page.
  static void write_user(TenantState& state, scheduler::SessionId session, uint32_t slot);
  // Returns 0 if only the tenant's limit applies.
  static uint64_t user_limit(const TenantState& state, const std::string& user) {
    return bounds_of_user(state.settings, user).memory_limit_bytes;
  }
  // Returns the held memory of the user's sessions on the device.
  uint64_t held_of_user(const TenantState& state, const std::string& user, scheduler::DeviceIndex device) const;
  uint64_t used_of_user(const TenantState& state, const std::string& user, scheduler::DeviceIndex device) const;
  // Whether `bytes` more would exceed the limit of the session's user.
  bool beyond_user_limit(const TenantState& state, scheduler::SessionId session, scheduler::DeviceIndex device,
                         uint64_t bytes) const;
  bool reserve_on(TenantState& state, scheduler::TenantId tenant, scheduler::SessionId session,
                  scheduler::DeviceIndex device, uint32_t slot, uint64_t bytes);
  // The tenant's state and slot of a session that runs a program; nothing: it has no slot.
  struct Held {
    const TenantState* state = nullptr;
    uint32_t slot = kLeftSlot;
  };
  std::optional<Held> held_by(scheduler::SessionId session, scheduler::TenantId tenant) const;
  // Returns the larger of the session's used and reserved memory, whether it is away or not.
  static uint64_t whole_bytes(const Held& of, scheduler::DeviceIndex device);
  uint64_t releasable_on(const Held& of, scheduler::DeviceIndex device) const;
  bool take_memory_on(TenantState& state, const SessionRecord& session, uint32_t slot, scheduler::DeviceIndex device);
  // False: the session has no reservation.
  bool give_back_all(scheduler::SessionId session, scheduler::TenantId tenant);
  void write_host_allowance(TenantState& state);
  void keep(TenantState& state);
  void let_page_go(TenantState& state);
  void write_allowance(TenantState& state, scheduler::DeviceIndex device, uint64_t bytes);
  uint64_t used(scheduler::TenantId tenant, scheduler::DeviceIndex device) const;
  uint64_t held(const TenantState& state, scheduler::DeviceIndex device) const;
  // Returns the held memory as read once in the present round, if there is one. Pages change at any time, so each
  // decision is checked again where memory is taken (lower_allowance, reserve_on, the worker itself).
  uint64_t held_now(const TenantState& state, scheduler::DeviceIndex device) const;
  uint64_t held_now(scheduler::TenantId tenant, scheduler::DeviceIndex device) const;
  bool beyond_limit(scheduler::TenantId tenant, scheduler::DeviceIndex device, uint64_t bytes) const;
  void poll_begins() override { ++polls_; }
  void poll_ends() override {
    if (--polls_ == 0) forget_poll();
  }
  void forget_poll() {
    sums_.clear();
    taken_back_.clear();
  }
  uint64_t reserved_for(const TenantState& state, scheduler::DeviceIndex device) const;
  // Raises the ledger's allowance, and not yet the page's, to `held_bytes` plus `bytes`.
  std::optional<uint64_t> raise_in_ledger(scheduler::TenantId tenant, scheduler::DeviceIndex device,
                                          uint64_t held_bytes, uint64_t bytes);
  // `ahead`: uses only free memory, without prewarmed contexts and without memory that others could release.
  Raised raise(scheduler::TenantId tenant, scheduler::SessionId session, scheduler::DeviceIndex device, uint64_t bytes,
               bool ahead);
  // Returns the time for which clients of other tenants may still hold prefetched memory.
  std::chrono::seconds held_ahead_by_others(scheduler::TenantId tenant) const;
  // Ends prewarmed workers with `bytes` of memory for a tenant's request.
  void end_prewarmed(scheduler::DeviceIndex device, uint64_t bytes);
  bool lent_to_others(scheduler::TenantId tenant, scheduler::DeviceIndex device) const;
  void take_back(scheduler::TenantId tenant, scheduler::DeviceIndex device);
  // Memory that was granted to a tenant, which has not taken it yet.
  struct Soon {
    scheduler::TenantId tenant{};
    uint64_t bytes = 0;
  };
  void write_metrics(scheduler::DeviceIndex device, Soon soon);
  void write_metrics(scheduler::DeviceIndex device) { write_metrics(device, {}); }
  void add(const TenantState& state, scheduler::TenantId tenant, TenantMetrics& figures) const;
  void answer(scheduler::SessionId session, ipc::RequestId request, bool yes);
  void poll_waiters();
  void await_next_poll();
  void keep_reach_fresh();

  SessionControl& control_;
  const Settings settings_;
  boost::asio::steady_timer timer_, reach_timer_;
  std::optional<scheduler::MemoryLedger> ledger_;  // from devices_known() on
  std::vector<uint64_t> context_bytes_, totals_;   // by device
  std::map<scheduler::TenantId, TenantState> tenants_;
  PrewarmedContexts* prewarmed_contexts_ = nullptr;
  Relieve relieve_;
  std::map<scheduler::DeviceIndex, size_t> prewarmed_;  // contexts
  ipc::RequestTable<Waiter> waiters_{kMemoryWaitersMax};
  std::map<scheduler::SessionId, scheduler::TenantId> reservations_;  // sessions with a reservation, and their tenants
  // The depth of nested rounds.
  unsigned polls_ = 0;
  mutable std::map<std::pair<const TenantState*, scheduler::DeviceIndex>, uint64_t> sums_;
  std::map<scheduler::DeviceIndex, std::set<scheduler::TenantId>>
      taken_back_;  // the tenants whose unused memory was already taken back in this round
  mutable uint64_t page_sums_ = 0;
  bool polling_ = false, reach_polling_ = false;
  // True from restore() to all_adopted(): no memory is taken back until all sessions are known.
  bool adopting_ = false;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
