// JobDevices has the GPUs that the sessions of one batch job share: as many as the job's token grants, whatever each of
// its programs asks for.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "scheduler/types.hpp"
#include "server/broker/session/session_registry.hpp"

namespace gpuwire::server {

// The job of a credential.
struct JobOfCredential {
  // Empty: no job.
  std::string job;
  // The bound for all its sessions together.
  unsigned gpus = 0;
};

// A job's GPUs are chosen with its first session, and stay its own until its last session has ended. The broker's
// thread only.
class JobDevices {
 public:
  using Devices = std::vector<scheduler::DeviceIndex>;
  using JobOf = std::function<JobOfCredential(const std::string& credential)>;
  JobDevices(const SessionRegistry& registry, JobOf job_of) : registry_(registry), job_of_(std::move(job_of)) {}

  JobOfCredential job_of(const SessionRecord& session) const {
    return session.credential.empty() ? JobOfCredential{} : job_of_(session.credential);
  }
  // Returns the devices of `may` that this session of the job may use; all of them while the job has none.
  Devices among(const JobOfCredential& job, const SessionRecord& session, const Devices& may);
  // Fixes the job's GPUs when a session is placed or has to wait. `devices`: the session's own, or none yet.
  void settle(const JobOfCredential& job, const SessionRecord& session, const Devices& devices, const Devices& may);

 private:
  bool has_others(const std::string& job, const SessionRecord& session) const;
  Devices in_use(const std::string& job) const;
  Devices filled(Devices devices, unsigned gpus, const Devices& may) const;
  void forget_ended();

  const SessionRegistry& registry_;
  const JobOf job_of_;
  struct Settled {
    // Ascending.
    Devices devices;
    // The job's first session.
    scheduler::SessionId by{};
  };
  // By job.
  std::map<std::string, Settled> settled_;
};

}  // namespace gpuwire::server
