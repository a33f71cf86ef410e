// Who may begin a session: asks the placement for GPUs, keeps those who wait, refuses what cannot be. Owns nothing of sockets.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "scheduler/placement.hpp"
#include "scheduler/types.hpp"
#include "server/broker/admission/job_devices.hpp"
#include "server/ipc/inventory.hpp"
#include "server/broker/session/session_registry.hpp"
#include "server/broker/admission/tenants.hpp"

namespace gpuwire::server {

// What a caller whose tenant is known wants. Its texts are the client's word, already checked for length and printable characters.
struct LoginRequest {
  std::string tenant;
  unsigned gpus = 0;             // 0: as many as the tenant usually gets
  uint64_t memory_bytes = 0;     // to be free on each; 0: not said
  std::string program, host;
  uint32_t client_pid = 0;
  std::string peer, security, credential;  // as in SessionRecord
  bool management = false;
};

struct AdmissionQueued {
  size_t place = 1, waiting = 1;  // place counts from 1
  std::string why;
};
struct AdmissionGranted {};
struct AdmissionRefused {
  RefusalCause cause = RefusalCause::internal;
  std::string reason;  // one line
};
using AdmissionAnswer = std::variant<AdmissionQueued, AdmissionGranted, AdmissionRefused>;

struct AdmissionLimits {
  // Running and waiting, and as many again that ask NVML; more are refused. Some of these places are kept for tenants that have none (places_kept).
  unsigned sessions_max = 64;
  unsigned sessions_per_gpu_max = 0;     // 0: no bound
  std::vector<scheduler::DeviceIndex> gpus;  // offered; empty: all
};

// The broker's thread only.
class Admission {
 public:
  using Clock = std::chrono::steady_clock;
  // AdmissionQueued at first and whenever the place changes, then one of the others, once. May be called before request() returns.
  using Answer = std::function<void(scheduler::SessionId, const AdmissionAnswer&)>;
  // The session has its devices; whoever prepares it calls prepared() or refuse() when it has a worker or cannot, then or later.
  using Prepare = std::function<void(scheduler::SessionId)>;

  Admission(SessionRegistry& registry, const TenantDirectory& tenants, AdmissionLimits limits, Prepare prepare)
      : registry_(registry), tenants_(tenants), limits_(std::move(limits)), prepare_(std::move(prepare)) {}

  // Before the first request.
  void devices_known(std::span<const ServerDevice> devices);
  // How much memory could be reserved on the device for this tenant now; without it: all that the tenant may ever have.
  void set_free_bytes(scheduler::Placement::Bytes free_bytes);
  // Which credentials were made for jobs of a batch system, and for how many GPUs; without it: none. Before the first request.
  void set_job_of(JobDevices::JobOf job_of) { jobs_.emplace(registry_, std::move(job_of)); }

  // The session stands in the registry until it is refused or over.
  scheduler::SessionId request(LoginRequest request, Answer answer);
  void prepared(scheduler::SessionId session);
  // A session in the registry that runs already: it keeps its devices, whatever the limits say now.
  void adopted(scheduler::SessionId session);
  void refuse(scheduler::SessionId session, RefusalCause cause, std::string reason);
  // The client has gone before it was served. No answer comes any more. Called by Sessions::cancel, which gives back the rest.
  void cancel(scheduler::SessionId session, const std::string& why);
  // A session whose client was given to a worker, or was about to be, is over.
  void ended(scheduler::SessionId session);
  // Memory has come back: perhaps somebody who waits can start.
  void reconsider();
  // Refuses who has waited for longer than its tenant's programs may.
  void refuse_overdue(Clock::time_point now);
  bool anybody_waits() const { return placement_ && !placement_->waiting().empty(); }

  // The tenants have changed too. Who waits keeps its arrival; who could never be served any more is refused.
  void reload(AdmissionLimits limits);
  // From now on every request is refused, and so is who waits.
  void close(RefusalCause cause, std::string reason);

  // How many GPUs a session of the tenant gets that does not say; 0 before the devices are known.
  size_t usual_gpus(const Tenant& tenant) const;

 private:
  struct Unanswered {
    Answer answer;
    unsigned gpus = 0;   // as asked for
    Clock::time_point since;
  };
  std::vector<scheduler::DeviceIndex> allowed(const Tenant& tenant) const;
  // Of these, those that the session may use as one of its job.
  std::vector<scheduler::DeviceIndex> allowed(const SessionRecord& session, const Tenant& tenant);
  JobOfCredential job_of(const SessionRecord& session) const { return jobs_ ? jobs_->job_of(session) : JobOfCredential{}; }
  uint64_t most_bytes(scheduler::TenantId tenant, scheduler::DeviceIndex device) const;
  scheduler::PlacementRequest placement_request(const SessionRecord& session, const Tenant& tenant, unsigned gpus);
  std::vector<scheduler::DeviceIndex> devices_to_show(const SessionRecord& session, const Tenant& tenant, unsigned gpus);
  std::string why_no_place(const Tenant& tenant, bool management) const;
  size_t waiting_of(scheduler::TenantId tenant) const;
  void place(const SessionRecord& session, const Tenant& tenant, unsigned gpus);
  void admit(scheduler::SessionId session, std::vector<scheduler::DeviceIndex> devices);
  void start_waiting();
  void tell_places();
  void tell(scheduler::SessionId session, const scheduler::Queued& queued);
  // Out of placement, whatever its state.
  void forget(scheduler::SessionId session);

  SessionRegistry& registry_;
  const TenantDirectory& tenants_;
  AdmissionLimits limits_;
  const Prepare prepare_;
  std::vector<ServerDevice> devices_;
  std::unique_ptr<scheduler::Placement> placement_;    // null until the devices are known
  scheduler::Placement::Bytes free_bytes_;
  std::optional<JobDevices> jobs_;
  std::map<scheduler::SessionId, Unanswered> unanswered_;  // those that have neither been granted nor refused
  bool starting_ = false, start_again_ = false;
  std::string closed_;                                 // not empty: why
  RefusalCause closed_cause_ = RefusalCause::shutting_down;
};

}  // namespace gpuwire::server
