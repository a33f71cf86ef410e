// The thread that decides which sessions may use which GPU: it reads the sessions' pages, asks the policy, and sets the
// gates.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tl/expected.hpp>

#include "protocol/threads/mutex.hpp"
#include "scheduler/policy.hpp"
#include "server/gpu_scheduler/limits.hpp"
#include "server/gpu_scheduler/page_reader.hpp"
#include "server/gpu_scheduler/runaway.hpp"
#include "server/gate/page/session_page.hpp"

namespace gpuwire::server {

struct GpuSchedulerSettings {
  // False: every gate stays open; time limits still apply.
  bool scheduling = true;
  // How many the process may run on.
  unsigned cores = 1;
  scheduler::Policy::Settings policy;
};

// The GPU scheduler's state, for figures.
struct GpuSchedulerSnapshot {
  struct Session {
    scheduler::SessionId id{};
    scheduler::Gate gate;
    scheduler::SessionAccount account;
    // GPU time, since the session began: the figure that is shown and billed.
    std::chrono::nanoseconds charged{};
    std::chrono::nanoseconds in_flight{}, waited{};
    uint64_t waits = 0, bursts = 0, submissions = 0;
    bool waiting = false, working = false;
    // Its time without a call and without work; nothing: it has one.
    std::optional<std::chrono::nanoseconds> idle;
    // The figures of its connection.
    uint64_t bytes_in = 0, bytes_out = 0, replies = 0;
    uint64_t chunks_found = 0, chunk_bytes_found = 0, chunk_bytes_kept = 0;
    // 0: not known.
    uint32_t round_trip_us = 0;
    std::string warning;
  };
  struct Drains {
    std::array<uint64_t, kDrainBoundsUs.size() + 1> counts{};
    double sum_us = 0;
  };
  struct Device {
    scheduler::DeviceIndex index = 0;
    scheduler::Regime regime = scheduler::Regime::free;
    // By Regime.
    std::array<std::chrono::nanoseconds, 3> in_regime{};
    std::chrono::nanoseconds system_time{};
    scheduler::CoRunMetrics co_run;
    // The number of times that the lease went from one session to another.
    uint64_t hand_overs = 0;
    // By the class of the session whose gate closed.
    std::array<Drains, scheduler::kServiceClasses> drains;
  };
  std::vector<Session> sessions;
  std::vector<Device> devices;
};

// Any thread may call any function; no function blocks for longer than one decision takes.
class GpuScheduler {
 public:
  // Called with the GPU scheduler's mutex held; must not block and not call the GPU scheduler.
  struct Hooks {
    // Its client is to be notified.
    std::function<void(scheduler::SessionId, std::string text)> warn;
    // It has to end.
    std::function<void(scheduler::SessionId, StopOrder order)> end;
  };
  // Starts the thread. Throws std::system_error when the system has no descriptors.
  GpuScheduler(GpuSchedulerSettings settings, Hooks hooks);
  ~GpuScheduler();
  GpuScheduler(const GpuScheduler&) = delete;
  GpuScheduler& operator=(const GpuScheduler&) = delete;

  void set_tenant(scheduler::TenantId tenant, const scheduler::TenantPolicy& policy, const SessionLimits& limits);

  // The worker's ends of the objects that it shares with the GPU scheduler.
  struct Ends {
    OwnedDescriptor page, doorbell;
  };
  // Adds a session, whose gate is closed until the next decision. The error names the missing resource of the system.
  tl::expected<Ends, std::string> add(scheduler::SessionId session, scheduler::TenantId tenant,
                                      std::span<const scheduler::DeviceIndex> devices);
  // Adds a session that began under an earlier broker, at that time, with the result of its add() there. The error
  // describes the invalid part.
  tl::expected<void, std::string> adopt(scheduler::SessionId session, scheduler::TenantId tenant,
                                        std::span<const scheduler::DeviceIndex> devices, Ends ends, PageTime began);
  // Returns the time when the session's page was made; zero: there is no such session.
  PageTime began(scheduler::SessionId session);
  // Removes a session whose worker is gone: its leases are free at the next decision, which begins at once. Does not
  // wait for the decision, so that a caller who removes a thousand sessions does not wait for a thousand decisions.
  void remove(scheduler::SessionId session);

  // Serves the session as a scavenger, whatever its tenant's class is, or again like its tenant's other sessions. Its
  // charge stays that of the session and its tenant.
  void set_scavenger(scheduler::SessionId session, bool scavenger);

  GpuSchedulerSnapshot snapshot();
  struct TenantTimes {
    std::chrono::nanoseconds charged{};
    // Turns while other sessions wanted the device.
    std::chrono::nanoseconds granted{};
  };
  TenantTimes times(scheduler::TenantId tenant, scheduler::DeviceIndex device);

 private:
  struct Session;
  struct Tenant {
    scheduler::TenantPolicy policy;
    SessionLimits limits;
  };
  struct Device {
    GpuSchedulerSnapshot::Device figures;
    // The last that got the lease.
    scheduler::SessionId holder{};
    PageTime counted{};
    // Sessions that share its link, as share_copies() has seen them.
    size_t copying = 0;
    // The state of the current hint_soon().
    bool draining = false;
  };

  void enter(std::unique_ptr<Session> session, PageTime now) REQUIRES(mutex_);
  void run();
  void let_leave() REQUIRES(mutex_);
  void set_policy(scheduler::TenantId tenant) REQUIRES(mutex_);
  // Reads all pages, charges work, and sets the gates.
  void poll_and_decide(PageTime now) REQUIRES(mutex_);
  void observe(PageTime now) REQUIRES(mutex_);
  void apply(const scheduler::GateChange& change, PageTime now) REQUIRES(mutex_);
  void set_gate(Session& session, PageTime now) REQUIRES(mutex_);
  void wake_sleepers() REQUIRES(mutex_);
  void hint_soon() REQUIRES(mutex_);
  void note_drain(Session& session, PageTime drained) REQUIRES(mutex_);
  void police(PageTime now) REQUIRES(mutex_);
  void count_regimes(PageTime now) REQUIRES(mutex_);
  bool unhindered(const Session& session) const REQUIRES(mutex_);
  std::chrono::nanoseconds charged(const Session& session) const REQUIRES(mutex_);
  void share_copies(PageTime now) REQUIRES(mutex_);
  void share_spin() REQUIRES(mutex_);

  // Announces another thread that wants mutex_: the GPU scheduler's thread does not take it again before that thread.
  class GPUWIRE_THREAD_SAFETY(scoped_lockable) Turn {
   public:
    explicit Turn(GpuScheduler& scheduler) ACQUIRE(scheduler.mutex_);
    ~Turn() RELEASE() {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    GpuScheduler& scheduler_;
    std::unique_lock<std::mutex> lock_;
  };
  void let_others() REQUIRES(mutex_);
  bool rung() const REQUIRES(mutex_);
  void wait(PageTime until) REQUIRES(mutex_);
  void wake();

  const GpuSchedulerSettings settings_;
  const Hooks hooks_;
  // changed_: an eventfd, for changes by other threads.
  OwnedDescriptor poll_, timer_, changed_;
  Mutex mutex_;
  // Taken with mutex_ held, or alone.
  Mutex leaving_mutex_;
  // Removed, and not released yet.
  std::vector<scheduler::SessionId> leaving_ GUARDED_BY(leaving_mutex_);
  scheduler::Policy policy_ GUARDED_BY(mutex_);
  std::map<scheduler::TenantId, Tenant> tenants_ GUARDED_BY(mutex_);
  // The tenants that have, or had, sessions which are served as scavengers.
  std::set<scheduler::TenantId> fallen_ GUARDED_BY(mutex_);
  std::map<scheduler::SessionId, std::unique_ptr<Session>> sessions_ GUARDED_BY(mutex_);
  std::map<scheduler::DeviceIndex, Device> devices_ GUARDED_BY(mutex_);
  // Zero: no limit is set.
  PageTime police_at_ GUARDED_BY(mutex_){};
  // Sessions share a GPU now: the thread polls before it sleeps.
  bool contended_ GUARDED_BY(mutex_) = false;
  // And one at a time: a thread may arrive that must not wait.
  bool leasing_ GUARDED_BY(mutex_) = false;
  PageTime copies_shared_ GUARDED_BY(mutex_){};
  // The number of threads that want the mutex. The GPU scheduler's thread reads it while it polls instead of sleeping,
  // and before it takes the mutex again. Only a hint: relaxed.
  std::atomic<unsigned> wanted_{0};
  // Whether leaving_ has elements; read like wanted_. Only a hint: relaxed.
  std::atomic<bool> anyone_leaves_{false};
  bool quit_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gpuwire::server
