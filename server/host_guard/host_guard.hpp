// Measures the workers' real memory on this machine, and bounds each tenant's; also bounds their threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/base/host_memory.hpp"
#include "server/base/lifetime.hpp"
#include "server/base/machine.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/host_guard/worker_groups.hpp"

namespace gpuwire::server {

inline constexpr std::chrono::milliseconds kHostPoll{250};
// If a tenant exceeds this multiple of its bound, its largest worker is killed at once.
inline constexpr uint64_t kKilledAtTimes = 2;
// The limit of one worker's threads. The worker itself bounds the threads for waiting calls (kBlockedWaitersMax), so
// only a compromised worker has more. The machine's process numbers are limited for all users together.
inline constexpr uint64_t kWorkerThreadsMax = 4096;
// The part of the machine's memory for a tenant without a configured value.
inline constexpr uint64_t kHostPartOfMachine = 2;
// The uncounted memory of all workers of a tenant together is kHostSlackBytes, or this part of a small machine, however
// many sessions there are; and for each session its threads, tables and allocator.
inline constexpr uint64_t kSlackPartOfMachine = 8;
inline constexpr uint64_t kSessionSlackBytes = 64u << 20;
inline constexpr int kKillOrderMax = 1000;  // oom_score_adj (proc_pid_oom_score_adj(5))

// When the machine runs out of memory, the kernel kills the process with the largest sum of its memory (in thousandths
// of the machine's) and this number. The sum is largest for the workers of a tenant that uses more than its charge; it
// reaches kKillOrderMax when the excess is the whole slack. Among other workers it is largest for those with the most
// memory, but never above kKillOrderMax.
struct KillOrder {
  uint64_t machine_bytes = 0;
  // The kernel's figure.
  uint64_t process_bytes = 0;
  // The kernel's figure, or the charge: the kernel's figures lack the driver's pinned memory.
  uint64_t counted_bytes = 0;
  // The tenant's memory beyond its charge.
  uint64_t excess_bytes = 0;
  // The tenant's margin.
  uint64_t slack_bytes = 0;
};
int kill_order(const KillOrder& facts);

// Without control groups for processor time: a worker's nice value relative to the broker's, by class. Only root may
// set negative values.
int processor_niceness(scheduler::ServiceClass service_class);

// The broker's thread only.
class HostGuard final : public SessionAttachments {
 public:
  struct Settings {
    // 0: unknown.
    uint64_t machine_bytes = 0;
    // The bound of a tenant without a configured value; 0: no bound.
    uint64_t host_bytes = 0;
    // The margin of a tenant.
    uint64_t slack_bytes = kHostSlackBytes;
    // The margin of each of its sessions, in addition.
    uint64_t session_slack_bytes = kSessionSlackBytes;
    // The bound of one worker's threads.
    uint64_t threads_max = kWorkerThreadsMax;
    std::chrono::milliseconds poll = kHostPoll;
    // The ledger's figure for the session; may be empty.
    std::function<uint64_t(const SessionRecord&)> charged;
    // The same for a device; only called for devices whose memory is this machine's.
    std::function<uint64_t(const SessionRecord&, scheduler::DeviceIndex)> charged_on_device;
    // Device memory of the tenant's suspended sessions, which their drivers hold in their processes; may be empty.
    std::function<uint64_t(scheduler::TenantId)> suspended;
    std::optional<WorkerGroups> groups;
  };
  // `control` outlives it.
  HostGuard(boost::asio::io_context& io, SessionControl& control, Settings settings);

  // Settings::suspended has changed for the tenant.
  void suspended_changed(scheduler::TenantId tenant);

  void devices_known(std::span<const ServerDevice> devices) override;
  void tenants_changed(const TenantDirectory& tenants) override;
  tl::expected<void, std::string> attach(const SessionRecord& session, SessionSpec& spec,
                                         ipc::SessionDescriptors& descriptors) override;
  tl::expected<void, std::string> attach_management(const SessionRecord& session, SessionSpec& spec,
                                                    ipc::SessionDescriptors& descriptors) override;
  void note(const SessionRecord& session, KeptSession& kept) const override;
  tl::expected<void, std::string> adopt(const SessionRecord& session, const KeptSession& kept,
                                        KeptEntry& descriptors) override;
  void ended(const SessionRecord& session) override;

 private:
  struct Watched {
    SessionRecord record;
    // A pidfd, because another process may get the number later.
    OwnedDescriptor process;
    ProcessStatus status;
    // The process's memory when it got its session.
    uint64_t before_bytes = 0;
    // Beyond that, at the last check.
    uint64_t bytes = 0;
    // In all, then.
    uint64_t process_bytes = 0;
    // Then.
    uint64_t charged = 0;
    // Then.
    uint64_t threads = 0;
    // The last value given to the kernel.
    int order = -1;
    bool notified_to_end = false;
  };
  void watch(const SessionRecord& session, OwnedDescriptor process, uint64_t before_bytes);
  void poll();
  void look_at(Watched& watched);
  uint64_t charged(const SessionRecord& session) const;
  uint64_t excess(scheduler::TenantId tenant, uint64_t has, uint64_t charged) const;
  void order(Watched& watched, uint64_t excess_bytes);
  void judge(scheduler::TenantId tenant);
  void judge_threads();
  void end(Watched& watched, const std::string& why, bool at_once);
  void await_next_poll();
  size_t workers_of(scheduler::TenantId tenant) const;
  uint64_t bound_of(scheduler::TenantId tenant, size_t workers) const;
  void bound_group(scheduler::TenantId tenant);
  void share_processors(scheduler::TenantId tenant);

  SessionControl& control_;
  Settings settings_;
  boost::asio::steady_timer timer_;
  bool polling_ = false;
  // Software devices: their memory is this machine's.
  std::set<scheduler::DeviceIndex> devices_here_;
  uint64_t device_bytes_here_ = 0;
  // 0: no bound.
  std::map<scheduler::TenantId, uint64_t> host_bytes_;
  struct Known {
    std::string name;
    scheduler::ServiceClass service_class{};
  };
  std::map<scheduler::TenantId, Known> tenants_;
  std::map<scheduler::SessionId, Watched> watched_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
