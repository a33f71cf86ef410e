// Looks at what the workers really have of this machine's memory, and bounds each tenant's; and at their threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/base/host_memory.hpp"
#include "server/base/lifetime.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/host_guard/worker_groups.hpp"

namespace gpuwire::server {

inline constexpr std::chrono::milliseconds kHostLook{250};
// A tenant above this many times its bound is not asked to end: its largest worker is killed.
inline constexpr uint64_t kKilledAtTimes = 2;
// Threads of one worker. Those for calls that wait are bounded by the worker itself (kBlockedWaitersMax), so only one
// that was taken over has more; all users' processes together have as many numbers as the machine has.
inline constexpr uint64_t kWorkerThreadsMax = 4096;
// Of the machine's memory, what a tenant may have whose configuration says nothing.
inline constexpr uint64_t kHostPartOfMachine = 2;
// The kill order of a worker that has nothing; it grows up to kKillOrderMax with the part of the machine that the
// worker has.
inline constexpr int kKillOrderMax = 1000;

// The broker's thread only.
class HostGuard final : public SessionAttachments {
 public:
  struct Settings {
    uint64_t machine_bytes = 0;  // 0: nobody tells
    uint64_t host_bytes = 0;     // of a tenant whose configuration says nothing; 0: no bound
    uint64_t slack_bytes = kHostSlackBytes;
    uint64_t threads_max = kWorkerThreadsMax;  // of one worker
    std::chrono::milliseconds look = kHostLook;
    std::function<uint64_t(const SessionRecord&)> charged;  // what the ledger has for the session; may be empty
    std::optional<WorkerGroups> groups;
  };
  // `control` outlives it.
  HostGuard(boost::asio::io_context& io, SessionControl& control, Settings settings);

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
    OwnedDescriptor process;    // a pidfd: the number may be another process's when this one is gone
    uint64_t before_bytes = 0;  // what the process had when it got its session
    uint64_t bytes = 0;         // beyond that, when it was looked at last
    uint64_t threads = 0;       // then
    bool told_to_end = false;
  };
  void watch(const SessionRecord& session, OwnedDescriptor process, uint64_t before_bytes);
  void look();
  void look_at(Watched& watched);
  void judge(scheduler::TenantId tenant);
  void judge_threads();
  void end(Watched& watched, const std::string& why, bool at_once);
  void await_next_look();
  uint64_t bound_of(scheduler::TenantId tenant) const;
  void bound_group(scheduler::TenantId tenant);

  SessionControl& control_;
  Settings settings_;
  boost::asio::steady_timer timer_;
  bool looking_ = false;
  uint64_t device_bytes_here_ = 0;                      // memory of software devices, which is this machine's
  std::map<scheduler::TenantId, uint64_t> host_bytes_;  // 0: no bound
  std::map<scheduler::SessionId, Watched> watched_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
