// Who may begin a session: asks the placement for GPUs, keeps those who wait, refuses what cannot be. Owns nothing of
// sockets.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "scheduler/placement.hpp"
#include "scheduler/types.hpp"
#include "server/broker/admission/job_devices.hpp"
#include "server/broker/admission/session_budgets.hpp"
#include "server/broker/admission/session_memory.hpp"
#include "server/broker/limits.hpp"
#include "server/ipc/inventory.hpp"
#include "server/broker/session/session_registry.hpp"
#include "server/broker/admission/tenants.hpp"

namespace gpuwire::server {

// What a caller whose tenant is known wants. Its texts are the client's word, already checked for length and printable
// characters.
struct LoginRequest {
  std::string tenant, user;   // user: who of the tenant; empty: nobody in particular
  unsigned gpus = 0;          // 0: as many as the tenant usually gets
  uint64_t memory_bytes = 0;  // reserved on each; 0: not said
  std::string program, host;
  uint32_t client_pid = 0;
  std::string peer, security, credential;  // as in SessionRecord
  bool management = false;
  std::string gpu_type;  // as in SessionRecord
};

struct AdmissionQueued {
  size_t place = 1, waiting = 1;  // place counts from 1
  std::string why;
  uint64_t round = 0;       // of its tenant's turns: what ask_again() is told
  bool awaits_end = false;  // scheduler::Queued's
};
struct AdmissionGranted {};
struct AdmissionRefused {
  RefusalCause cause = RefusalCause::internal;
  std::string reason;  // one line
};
using AdmissionAnswer = std::variant<AdmissionQueued, AdmissionGranted, AdmissionRefused>;
// What a program would be told if it came now.
struct AdmissionPreview {
  AdmissionAnswer answer;
  std::vector<scheduler::DeviceIndex> devices;  // that it may use; none when it is refused
};

struct AdmissionLimits {
  // That run, and as many again that ask NVML; more programs wait, and more of those that ask are refused. Some of
  // these places are kept for tenants that have none (places_kept).
  unsigned sessions_max = 64;
  unsigned queued_max = kQueuedMax;          // that wait, beside what bounds each tenant; more are refused
  unsigned sessions_per_gpu_max = 0;         // 0: no bound
  std::vector<scheduler::DeviceIndex> gpus;  // offered; empty: all
};

// The broker's thread only.
class Admission {
 public:
  using Clock = std::chrono::steady_clock;
  // What it decides about a session, for the object that is the session. May be called before the call returns that has
  // led to it.
  struct Events {
    // It has its devices, and its place in the queue no more.
    std::function<void(scheduler::SessionId, std::vector<scheduler::DeviceIndex>)> placed;
    // At first, and whenever the place changes.
    std::function<void(scheduler::SessionId, AdmissionQueued)> queued;
    // It cannot be had, or not any more. over() follows, before this returns.
    std::function<void(scheduler::SessionId, RefusalCause, std::string)> refused;
    // A detached session whose place somebody needs is to end; over() follows some time.
    std::function<void(scheduler::SessionId, std::string)> crowded_out;
  };

  Admission(SessionRegistry& registry, const TenantDirectory& tenants, AdmissionLimits limits, Events events)
      : registry_(registry), tenants_(tenants), limits_(std::move(limits)), events_(std::move(events)) {}

  // Before the first request.
  void devices_known(std::span<const ServerDevice> devices);
  // Who has how much memory, and reservations; without it: nobody uses any. Outlives the last session.
  void set_memory(SessionMemory& memory);
  // Whose budget is used up; without it: nobody's. Outlives the last session.
  void set_budgets(const SessionBudgets& budgets) { budgets_ = &budgets; }
  // It is somebody else's that is used up now.
  void budgets_changed() { revise_all(); }
  // Which credentials were made for jobs of a batch system, and for how many GPUs; without it: none. Before the first
  // request.
  void set_job_of(JobDevices::JobOf job_of) { jobs_.emplace(registry_, std::move(job_of)); }

  // The caller as a session for the registry: who it is here, if its tenant is known.
  SessionRecord record_of(LoginRequest request) const;
  // Decides about one that stands in the registry, or takes it into the queue. `gpus`: as in LoginRequest.
  void ask(scheduler::SessionId session, unsigned gpus);
  // What ask() would decide now about a program of this request. Nothing changes, and nobody is told.
  AdmissionPreview preview(LoginRequest request);
  // One that has waited under an earlier broker, in the order of their numbers, before anybody else is asked about: it
  // has its place (`round`: as it was told last), and nobody behind it gets what it is waiting for; but it is not
  // placed before its client has come back to it. Refused as any other if it can never be had now.
  void ask_again(scheduler::SessionId session, unsigned gpus, uint64_t round);
  void client_is_back(scheduler::SessionId session);
  // A session in the registry that runs already: it keeps its devices, whatever the limits say now.
  void adopted(scheduler::SessionId session);
  // The session is over, in whatever way: its place, or its devices, are somebody else's.
  void over(scheduler::SessionId session);
  // Memory has come back, or time has passed: perhaps somebody who waits can start.
  void reconsider(Clock::time_point now = Clock::now());
  // Refuses who has waited for longer than its tenant's programs may.
  void refuse_overdue(Clock::time_point now);
  bool anybody_waits() const { return placement_ && !placement_->waiting().empty(); }

  // The tenants have changed too. Who waits keeps its arrival; who could never be served any more is refused.
  void reload(AdmissionLimits limits);
  // From now on everybody who asks is refused, and so is who waits, or is about to start.
  void close(RefusalCause cause, std::string reason);

  // The GPUs on which a waiting session begins as programs there end; none: it does not wait, or its tenant's limits or
  // its budget hold it up.
  std::vector<scheduler::DeviceIndex> awaited_gpus(scheduler::SessionId session);

  // How many GPUs a session of the tenant gets that does not say; 0 before the devices are known.
  size_t usual_gpus(const Tenant& tenant) const;

 private:
  struct Waiting {
    unsigned gpus = 0;  // as asked for
    Clock::time_point since;
    bool vacant = false;      // its client has lost its connection with an earlier broker, and is not back
    bool awaits_end = false;  // as it was notified last
  };
  std::vector<scheduler::DeviceIndex> allowed(const Tenant& tenant) const;
  // Of these, those that are of the type that it wants, and that it may use as one of its job.
  std::vector<scheduler::DeviceIndex> allowed(const SessionRecord& session, const Tenant& tenant);
  bool has_type(scheduler::DeviceIndex device, const std::string& type) const;
  JobOfCredential job_of(const SessionRecord& session) const {
    return jobs_ ? jobs_->job_of(session) : JobOfCredential{};
  }
  uint64_t most_bytes(scheduler::TenantId tenant, scheduler::DeviceIndex device) const;
  uint64_t guaranteed_bytes(scheduler::TenantId tenant, scheduler::DeviceIndex device) const;
  scheduler::Placement::Memory placement_memory() const;
  scheduler::PlacementRequest placement_request(const SessionRecord& session, const Tenant& tenant, unsigned gpus);
  std::vector<scheduler::DeviceIndex> devices_to_show(const SessionRecord& session, const Tenant& tenant,
                                                      unsigned gpus);
  // Why it is refused before the placement is asked; nothing: it is not. `tenant`: null, the server has none of the
  // name. `gpus`: those of its job, if it has one and says nothing.
  std::optional<AdmissionRefused> refusal(const SessionRecord& session, const Tenant* tenant, unsigned gpus) const;
  // Empty: there are GPUs of the type that it wants, or it wants none in particular.
  std::string why_no_gpu_of_type(const SessionRecord& session, const Tenant& tenant) const;
  // Empty: there is one for it, beside all others.
  std::string why_no_place(const Tenant& tenant, const SessionRecord& asking) const;
  std::string why_not_now(scheduler::TenantId tenant, const std::map<scheduler::TenantId, size_t>& running) const;
  static Clock::time_point since(const SessionRecord& session);
  // Ends a session without a connection, of the tenant that has most places and at least two more than this one, for
  // one that waits for a place.
  void make_place(const Tenant& tenant, const SessionRecord& asking);
  // How many places each tenant has or waits for, but for this session and those that leave.
  std::map<scheduler::TenantId, size_t> places_held(const SessionRecord& asking) const;
  size_t waiting_of(scheduler::TenantId tenant) const;
  void refuse(scheduler::SessionId session, RefusalCause cause, std::string reason) {
    events_.refused(session, cause, std::move(reason));
  }
  void place(const SessionRecord& session, const Tenant& tenant, unsigned gpus);
  scheduler::ServiceClass class_of(const SessionRecord& session, const Tenant& tenant) const;
  void revise_all();
  void start_waiting();
  void notify_places();
  void notify(scheduler::SessionId session, const scheduler::Queued& queued);

  SessionRegistry& registry_;
  const TenantDirectory& tenants_;
  AdmissionLimits limits_;
  const Events events_;
  std::vector<ServerDevice> devices_;
  std::unique_ptr<scheduler::Placement> placement_;  // null until the devices are known
  SessionMemory* memory_ = nullptr;
  const SessionBudgets* budgets_ = nullptr;
  const SessionRecord* previewed_ = nullptr;  // while preview() asks the placement
  std::optional<JobDevices> jobs_;
  std::map<scheduler::SessionId, Waiting> waiting_;  // those in the placement's queue
  std::set<scheduler::SessionId> leaving_;           // told to end by make_place(), and still there
  bool starting_ = false, start_again_ = false;
  std::string closed_;  // not empty: why
  RefusalCause closed_cause_ = RefusalCause::shutting_down;
};

}  // namespace gpuwire::server
