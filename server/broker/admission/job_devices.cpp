#include "server/broker/admission/job_devices.hpp"

#include <algorithm>
#include <set>

namespace gpuwire::server {

namespace {

bool holds(const JobDevices::Devices& devices, scheduler::DeviceIndex device) {
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

}  // namespace

JobDevices::Devices JobDevices::among(const JobOfCredential& job, const SessionRecord& session, const Devices& may) {
  auto before = settled_.find(job.job);
  if (!has_others(job.job, session) && (before == settled_.end() || before->second.by != session.number)) {
    settled_.erase(job.job);
    return may;
  }
  Devices& devices = settled_[job.job].devices;
  // The job may have sessions of an earlier broker, which are not in `settled_`; and a reload may have removed GPUs.
  std::erase_if(devices, [&](scheduler::DeviceIndex device) { return !holds(may, device); });
  if (devices.size() < job.gpus) {
    for (scheduler::DeviceIndex device : in_use(job.job))
      if (!holds(devices, device) && devices.size() < job.gpus) devices.push_back(device);
    devices = filled(std::move(devices), job.gpus, may);
  }
  Devices found;
  std::copy_if(may.begin(), may.end(), std::back_inserter(found),
               [&](scheduler::DeviceIndex device) { return holds(devices, device); });
  return found;
}

void JobDevices::settle(const JobOfCredential& job, const SessionRecord& session, const Devices& devices,
                        const Devices& may) {
  forget_ended();
  if (!settled_.contains(job.job)) settled_[job.job] = {filled(devices, job.gpus, may), session.number};
}

bool JobDevices::has_others(const std::string& job, const SessionRecord& session) const {
  return std::any_of(registry_.all().begin(), registry_.all().end(), [&](const auto& one) {
    return one.first != session.number && !one.second.management && job_of(one.second).job == job;
  });
}

JobDevices::Devices JobDevices::in_use(const std::string& job) const {
  Devices devices;
  for (const auto& [number, session] : registry_.all()) {
    if (session.management || job_of(session).job != job) continue;
    for (scheduler::DeviceIndex device : session.devices)
      if (!holds(devices, device)) devices.push_back(device);
  }
  return devices;
}

// Adds devices of `may`, those with the fewest sessions first, up to `gpus` in all.
JobDevices::Devices JobDevices::filled(Devices devices, unsigned gpus, const Devices& may) const {
  std::map<scheduler::DeviceIndex, size_t> sessions;
  for (const auto& [number, session] : registry_.all())
    for (scheduler::DeviceIndex device : session.devices) sessions[device] += !session.management;
  Devices others;
  std::copy_if(may.begin(), may.end(), std::back_inserter(others),
               [&](scheduler::DeviceIndex device) { return !holds(devices, device); });
  std::stable_sort(others.begin(), others.end(), [&](auto one, auto other) { return sessions[one] < sessions[other]; });
  for (size_t i = 0; devices.size() < gpus && i < others.size(); ++i) devices.push_back(others[i]);
  std::sort(devices.begin(), devices.end());
  return devices;
}

void JobDevices::forget_ended() {
  std::set<std::string> there;
  for (const auto& [number, session] : registry_.all())
    if (!session.management) there.insert(job_of(session).job);
  std::erase_if(settled_, [&](const auto& one) { return !there.contains(one.first); });
}

}  // namespace gpuwire::server
