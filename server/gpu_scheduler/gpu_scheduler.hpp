// The thread that decides who may use which GPU now: it looks at the sessions' pages, asks the policy, and sets the
// gates.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tl/expected.hpp>

#include "scheduler/policy.hpp"
#include "server/gpu_scheduler/limits.hpp"
#include "server/gpu_scheduler/page_reader.hpp"
#include "server/gpu_scheduler/runaway.hpp"
#include "server/gate/page/session_page.hpp"

namespace gpuwire::server {

struct GpuSchedulerSettings {
  bool scheduling = true;  // false: every gate stays open; limits of time hold all the same
  unsigned cores = 1;      // how many the process may run on
  scheduler::Policy::Settings policy;
};

// What the GPU scheduler knows, for figures.
struct GpuSchedulerSnapshot {
  struct Session {
    scheduler::SessionId id{};
    scheduler::Gate gate;
    scheduler::SessionAccount account;
    std::chrono::nanoseconds busy{}, in_flight{}, waited{};
    uint64_t waits = 0, bursts = 0, submissions = 0;
    bool waiting = false, working = false;
    uint64_t bytes_in = 0, bytes_out = 0, replies = 0;  // of its connection
    uint64_t chunks_found = 0, chunk_bytes_found = 0, chunk_bytes_kept = 0;
    uint32_t round_trip_us = 0;  // 0: not known
    std::string warning;
  };
  struct Drains {
    std::array<uint64_t, kDrainBoundsUs.size() + 1> counts{};
    double sum_us = 0;
  };
  struct Device {
    scheduler::DeviceIndex index = 0;
    scheduler::Regime regime = scheduler::Regime::free;
    std::array<std::chrono::nanoseconds, 3> in_regime{};  // by Regime
    std::chrono::nanoseconds system_time{};
    scheduler::CoRunMetrics co_run;
    uint64_t hand_overs = 0;                                // of the lease, from one session to another
    std::array<Drains, scheduler::kServiceClasses> drains;  // by the class of the session whose gate closed
  };
  std::vector<Session> sessions;
  std::vector<Device> devices;
};

// Everything may be called from any thread; nothing blocks for longer than one decision takes.
class GpuScheduler {
 public:
  // On the GPU scheduler's thread; must not block and not call the GPU scheduler.
  struct Hooks {
    std::function<void(scheduler::SessionId, std::string text)> warn;  // its client is to be told
    std::function<void(scheduler::SessionId, std::string why)> end;    // it has to end
  };
  // Starts the thread. Throws std::system_error when the system has no descriptors.
  GpuScheduler(GpuSchedulerSettings settings, Hooks hooks);
  ~GpuScheduler();
  GpuScheduler(const GpuScheduler&) = delete;
  GpuScheduler& operator=(const GpuScheduler&) = delete;

  void set_tenant(scheduler::TenantId tenant, const scheduler::TenantPolicy& policy, const SessionLimits& limits);

  // The worker's ends of what it shares with the GPU scheduler.
  struct Ends {
    OwnedDescriptor page, doorbell;
  };
  // Its gate is closed until the next decision. The error says what the system lacks.
  tl::expected<Ends, std::string> add(scheduler::SessionId session, scheduler::TenantId tenant,
                                      std::span<const scheduler::DeviceIndex> devices);
  // One that began under an earlier broker, at that time, with what add() gave then. The error says what cannot be.
  tl::expected<void, std::string> adopt(scheduler::SessionId session, scheduler::TenantId tenant,
                                        std::span<const scheduler::DeviceIndex> devices, Ends ends, PageTime began);
  // When its page was made; zero: there is no such session.
  PageTime began(scheduler::SessionId session);
  // Its worker is gone: its leases are free at once.
  void remove(scheduler::SessionId session);

  GpuSchedulerSnapshot snapshot();
  struct TenantTimes {
    std::chrono::nanoseconds charged{};
    std::chrono::nanoseconds granted{};  // turns, while others wanted the device
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
    scheduler::SessionId holder{};  // the last that got the lease
    PageTime counted{};
  };

  void enter(std::unique_ptr<Session> session, PageTime now);
  void run();
  // All with mutex_ held.
  void observe(PageTime now);
  void apply(const scheduler::GateChange& change, PageTime now);
  void set_gate(Session& session, PageTime now);
  void wake_sleepers();
  void hint_soon();
  void note_drain(Session& session, PageTime drained);
  void police(PageTime now);
  void count_regimes(PageTime now);
  bool unhindered(const Session& session) const;
  void share_copies(PageTime now);
  void share_spin();

  // Another thread's time with mutex_: the GPU scheduler's does not take it again before.
  class Turn {
   public:
    explicit Turn(GpuScheduler& scheduler);

   private:
    GpuScheduler& scheduler_;
    std::unique_lock<std::mutex> lock_;
  };
  void let_others(std::unique_lock<std::mutex>& lock);
  bool rung() const;
  void wait(std::unique_lock<std::mutex>& lock, PageTime until);
  void wake();

  const GpuSchedulerSettings settings_;
  const Hooks hooks_;
  OwnedDescriptor poll_, timer_, changed_;  // changed_: an eventfd, for what other threads have changed
  std::mutex mutex_;
  scheduler::Policy policy_;
  std::map<scheduler::TenantId, Tenant> tenants_;
  std::map<scheduler::SessionId, std::unique_ptr<Session>> sessions_;
  std::map<scheduler::DeviceIndex, Device> devices_;
  PageTime police_at_{};    // zero: no limit is set
  bool contended_ = false;  // sessions share a GPU now: the thread looks before it sleeps
  bool leasing_ = false;    // and one at a time: somebody may come who must not wait
  PageTime copies_shared_{};
  // Threads that want the mutex: read by the GPU scheduler's while it looks instead of sleeping, and before it takes
  // the mutex again. Only a hint: relaxed.
  std::atomic<unsigned> wanted_{0};
  bool quit_ = false;
  std::thread thread_;
};

}  // namespace gpuwire::server
