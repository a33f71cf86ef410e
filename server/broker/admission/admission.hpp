// Admission decides which sessions may begin: it asks the placement for GPUs, queues waiting sessions, and refuses
// requests that can never be met. It owns no sockets.
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

// The request of a caller whose tenant is known. Its texts come from the client, already checked for length and
// printable characters.
struct LoginRequest {
  std::string tenant, user;   // user: of the tenant; empty: no particular one
  unsigned gpus = 0;          // 0: the tenant's usual number
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
  uint64_t round = 0;       // of its tenant's turns: ask_again()'s argument
  bool awaits_end = false;  // as scheduler::Queued has it
};
struct AdmissionGranted {};
struct AdmissionRefused {
  RefusalCause cause = RefusalCause::internal;
  std::string reason;  // one line
};
using AdmissionAnswer = std::variant<AdmissionQueued, AdmissionGranted, AdmissionRefused>;
// The answer that a program would get if it came now.
struct AdmissionPreview {
  AdmissionAnswer answer;
  std::vector<scheduler::DeviceIndex> devices;  // the devices that it may use; none when it is refused
};

struct AdmissionLimits {
  // The bound on running programs, and a second one on sessions that ask NVML; further programs wait, further NVML
  // sessions are refused. Some of these places are reserved for tenants that have none (places_kept).
  unsigned sessions_max = 64;
  unsigned queued_max = kQueuedMax;          // waiting programs, beside each tenant's bound; more are refused
  unsigned sessions_per_gpu_max = 0;         // 0: no bound
  std::vector<scheduler::DeviceIndex> gpus;  // the offered GPUs; empty: all
};

// The broker's thread only.
class Admission {
 public:
  using Clock = std::chrono::steady_clock;
  // The decisions about a session, for its object. They may be called before the call returns that has caused them.
  struct Events {
    // The session has its devices, and has left the queue.
    std::function<void(scheduler::SessionId, std::vector<scheduler::DeviceIndex>)> placed;
    // Called at first, and whenever the place changes.
    std::function<void(scheduler::SessionId, AdmissionQueued)> queued;
    // The session cannot be served, or not any more. over() follows, before this returns.
    std::function<void(scheduler::SessionId, RefusalCause, std::string)> refused;
    // A detached session has to end, because another one needs its place; over() follows later.
    std::function<void(scheduler::SessionId, std::string)> crowded_out;
  };

  Admission(SessionRegistry& registry, const TenantDirectory& tenants, AdmissionLimits limits, Events events)
      : registry_(registry), tenants_(tenants), limits_(std::move(limits)), events_(std::move(events)) {}

  // Precondition: no request yet.
  void devices_known(std::span<const ServerDevice> devices);
  // The view of memory and its reservations; without it no session uses any memory. Outlives the last session.
  void set_memory(SessionMemory& memory);
  // The view of budgets; without it no budget is used up. Outlives the last session.
  void set_budgets(const SessionBudgets& budgets) { budgets_ = &budgets; }
  // The set of used-up budgets has changed.
  void budgets_changed() { revise_all(); }
  // Tells whether idle sessions are being suspended for a waiting one, for the reason of its wait; without it none are.
  void set_suspends_for(std::function<bool(scheduler::SessionId)> suspends_for) {
    suspends_for_ = std::move(suspends_for);
  }
  // Tells whether a GPU is drained, as scheduler::Placement::set_drained(); drains_changed() follows a change. Without
  // it none is.
  void set_drained(scheduler::Placement::Drained drained);
  void drains_changed() { start_waiting(); }
  // Tells for which job of a batch system a credential was made, and for how many GPUs; without it no credential has a
  // job. Precondition: no request yet.
  void set_job_of(JobDevices::JobOf job_of) { jobs_.emplace(registry_, std::move(job_of)); }

  // Returns the caller as a session for the registry, with its tenant's number and class if the tenant is known.
  SessionRecord record_of(LoginRequest request) const;
  // Decides about a session of the registry, or queues it. `gpus`: as in LoginRequest.
  void ask(scheduler::SessionId session, unsigned gpus);
  // Returns the decision that ask() would make now about a program of this request. Changes nothing and notifies
  // nobody.
  AdmissionPreview preview(LoginRequest request);
  // Queues a session that waited under an earlier broker. Precondition: called in the order of the sessions' numbers,
  // before the first ask(). The session keeps its place (`round`: its last one), and no session behind it gets the GPUs
  // that it waits for; it is placed only after client_is_back(). It is refused like any other if it can never be
  // served.
  void ask_again(scheduler::SessionId session, unsigned gpus, uint64_t round);
  void client_is_back(scheduler::SessionId session);
  // Enters a session of the registry that runs already: it keeps its devices, whatever the limits are now.
  void adopted(scheduler::SessionId session);
  // The session is over, in any way: releases its place or its devices.
  void over(scheduler::SessionId session);
  // Starts waiting sessions that can start now. Called when memory was freed or time has passed.
  void reconsider(Clock::time_point now = Clock::now());
  // Refuses sessions that have waited for longer than their tenant's programs may.
  void refuse_overdue(Clock::time_point now);
  bool anybody_waits() const { return placement_ && !placement_->waiting().empty(); }

  // Takes new limits; the tenants have changed too. Waiting sessions keep their arrival; those that can never be served
  // any more are refused.
  void reload(AdmissionLimits limits);
  // Refuses every request from now on, and the sessions that wait or are about to start.
  void close(RefusalCause cause, std::string reason);

  // Returns the GPUs on which a waiting session begins as programs there end; none: it does not wait, or its tenant's
  // limits or its budget hold it up.
  std::vector<scheduler::DeviceIndex> awaited_gpus(scheduler::SessionId session);

  // Returns the waiting sessions that lack nothing but memory, in the queue's order.
  std::vector<scheduler::MemoryWait> waiting_for_memory();

  // Returns the sets of GPUs that the tenants' sessions get if they ask for no number, ascending: each single GPU that
  // a tenant with one GPU a session may use, and all offered GPUs together; without those with a drained GPU. Sets of
  // other sizes are rare, and many.
  std::vector<std::vector<scheduler::DeviceIndex>> usual_sets() const;

 private:
  struct Waiting {
    unsigned gpus = 0;  // as asked for
    Clock::time_point since;
    bool vacant = false;      // its client lost its connection with an earlier broker, and is not back
    bool awaits_end = false;  // as in the last notification
  };
  // Returns the number of GPUs for a session of the tenant that asks for no number; 0 before the devices are known.
  size_t usual_gpus(const Tenant& tenant) const;
  std::vector<scheduler::DeviceIndex> offered() const;
  std::vector<scheduler::DeviceIndex> allowed(const Tenant& tenant) const;
  // Returns the tenant's allowed devices that are of the session's type and belong to its job, if it has one.
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
  // Returns the refusal that needs no placement, if any. `tenant`: null if the server has none of the name. `gpus`: the
  // number for its job, if it has one and asks for no number.
  std::optional<AdmissionRefused> refusal(const SessionRecord& session, const Tenant* tenant, unsigned gpus) const;
  // Returns the reason; empty: there are GPUs of its type, or it asks for no type.
  std::string why_no_gpu_of_type(const SessionRecord& session, const Tenant& tenant) const;
  // Returns the reason; empty: the server has a place for it.
  std::string why_no_place(const Tenant& tenant, const SessionRecord& asking) const;
  std::string why_not_now(scheduler::TenantId tenant, const std::map<scheduler::TenantId, size_t>& running) const;
  static Clock::time_point since(const SessionRecord& session);
  // Ends a detached session for one that waits for a place: a session of the tenant with most places, which has at
  // least two more than this tenant.
  void make_place(const Tenant& tenant, const SessionRecord& asking);
  // Returns the number of places that each tenant has or waits for, without this session and the leaving ones.
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
  const SessionRecord* previewed_ = nullptr;  // set while preview() asks the placement
  std::function<bool(scheduler::SessionId)> suspends_for_;
  scheduler::Placement::Drained drained_;
  std::optional<JobDevices> jobs_;
  std::map<scheduler::SessionId, Waiting> waiting_;  // the sessions in the placement's queue
  std::set<scheduler::SessionId> leaving_;           // told to end by make_place(), and not over yet
  bool starting_ = false, start_again_ = false;
  std::string closed_;  // the reason; empty: open
  RefusalCause closed_cause_ = RefusalCause::shutting_down;
};

}  // namespace gpuwire::server
