#include "server/broker/admission/admission.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "protocol/wire/gpu_type.hpp"

namespace gpuwire::server {

using scheduler::DeviceIndex;
using scheduler::SessionId;
using scheduler::TenantId;

namespace {

// An empty list means every device.
bool is_among(const auto& devices, DeviceIndex device) {
  return devices.empty() || std::find(devices.begin(), devices.end(), device) != devices.end();
}

// Returns the number of places that a session of `asking` has to leave free for the first sessions of other tenants.
// `held`: the number of sessions of each tenant. Each tenant with a guarantee has a place of its own; for all the
// others at most half of the places are reserved, and only a tenant that has a session already leaves them free.
size_t places_kept(const std::vector<Tenant>& tenants, const Tenant& asking, const std::map<TenantId, size_t>& held,
                   size_t places) {
  auto has_none = [&](const Tenant& tenant) { return !held.contains(tenant.id) || held.at(tenant.id) == 0; };
  const bool first = has_none(asking);
  if (first && has_guarantee(asking.settings)) return 0;
  size_t guaranteed = 0, others = 0;
  for (const Tenant& tenant : tenants) {
    if (tenant.known && tenant.id != asking.id && has_none(tenant))
      ++(has_guarantee(tenant.settings) ? guaranteed : others);
  }
  return guaranteed + (first ? 0 : std::min(others, places / 2));
}

std::string too_many_wait(const Tenant& tenant) {
  return fmt::format("the tenant has reached its limit of waiting programs ({})", tenant.settings.queued_max);
}

// The number of preview()'s session, which does not exist: the broker counts from 1, and never so far.
constexpr SessionId kPreviewed{UINT64_MAX};

}  // namespace

// --- what tenants may have -----------------------------------------------------------------------------------------

void Admission::devices_known(std::span<const ServerDevice> devices) {
  devices_.assign(devices.begin(), devices.end());
  std::vector<scheduler::Placement::Device> sizes;
  for (const ServerDevice& device : devices_) sizes.push_back({device.bytes, limits_.sessions_per_gpu_max});
  placement_ = std::make_unique<scheduler::Placement>(std::move(sizes));
  placement_->set_memory(placement_memory());
  placement_->set_held([this](SessionId session) {
    const SessionRecord* record = session == kPreviewed ? previewed_ : registry_.find(session);
    return budgets_ && record ? budgets_->why_held(*record) : std::string();
  });
  placement_->set_drained(drained_);
  placement_->set_places([this](TenantId tenant, const auto& running) { return why_not_now(tenant, running); });
}

void Admission::set_drained(scheduler::Placement::Drained drained) {
  drained_ = std::move(drained);
  if (placement_) placement_->set_drained(drained_);
}

void Admission::set_memory(SessionMemory& memory) {
  memory_ = &memory;
  if (placement_) placement_->set_memory(placement_memory());
}

scheduler::Placement::Memory Admission::placement_memory() const {
  scheduler::Placement::Memory memory{
      .free_now = {},
      .most = [this](TenantId tenant, DeviceIndex device) { return most_bytes(tenant, device); },
      .held = {},
      .held_by = {},
      .away = {},
      .guaranteed = [this](TenantId tenant, DeviceIndex device) { return guaranteed_bytes(tenant, device); },
      .reserved = {},
      .guaranteed_to_others =
          [this](TenantId tenant, DeviceIndex device) {
            uint64_t bytes = 0;
            for (const Tenant& other : tenants_.all())
              if (other.known && other.id != tenant) bytes += memory_on(other.settings, device).guaranteed_bytes;
            return bytes;
          },
      .reserve = {}};
  if (!memory_) return memory;
  memory.free_now = [this](TenantId tenant, DeviceIndex device) { return memory_->free_bytes(tenant, device); };
  memory.held = [this](TenantId tenant, DeviceIndex device) { return memory_->held_bytes(tenant, device); };
  memory.held_by = [this](SessionId session, DeviceIndex device) {
    const SessionRecord* record = registry_.find(session);
    return record ? memory_->held_bytes(session, record->tenant_id, device) : 0;
  };
  memory.away = [this](SessionId session) {
    const SessionRecord* record = registry_.find(session);
    return record && memory_->is_away(session, record->tenant_id);
  };
  memory.reserved = [this](DeviceIndex device) { return memory_->reserved_bytes(device); };
  memory.reserve = [this](const scheduler::PlacementRequest& request, const std::vector<DeviceIndex>& devices) {
    return memory_->reserve(request.session, request.tenant, request.user, devices, request.memory_bytes);
  };
  return memory;
}

std::vector<DeviceIndex> Admission::offered() const {
  std::vector<DeviceIndex> found;
  for (const ServerDevice& device : devices_) {
    if (is_among(limits_.gpus, device.index)) found.push_back(device.index);
  }
  return found;
}

std::vector<DeviceIndex> Admission::allowed(const Tenant& tenant) const {
  std::vector<DeviceIndex> found = offered();
  std::erase_if(found, [&](DeviceIndex device) { return !is_among(tenant.settings.gpus_allowed, device); });
  return found;
}

std::vector<DeviceIndex> Admission::allowed(const SessionRecord& session, const Tenant& tenant) {
  JobOfCredential job = job_of(session);
  std::vector<DeviceIndex> may = job.job.empty() ? allowed(tenant) : jobs_->among(job, session, allowed(tenant));
  std::erase_if(may, [&](DeviceIndex device) { return !has_type(device, session.gpu_type); });
  return may;
}

bool Admission::has_type(DeviceIndex index, const std::string& type) const {
  return std::any_of(devices_.begin(), devices_.end(), [&](const ServerDevice& device) {
    return device.index == index && wire::is_of_type(device.name, type);
  });
}

std::string Admission::why_no_gpu_of_type(const SessionRecord& session, const Tenant& tenant) const {
  const std::vector<DeviceIndex> may = allowed(tenant);
  if (session.gpu_type.empty() ||
      std::any_of(may.begin(), may.end(), [&](DeviceIndex device) { return has_type(device, session.gpu_type); }))
    return {};
  return fmt::format("this server has no GPU of the type {} for the tenant", session.gpu_type);
}

uint64_t Admission::most_bytes(TenantId id, DeviceIndex device) const {
  uint64_t bytes = device < devices_.size() ? devices_[device].bytes : 0;
  if (memory_) bytes = std::min(bytes, memory_->device_bytes(device));
  uint64_t most = bytes;
  for (const Tenant& tenant : tenants_.all()) {
    if (!tenant.known && tenant.id != id) continue;
    TenantMemory memory = memory_on(tenant.settings, device);
    if (tenant.id != id) most -= std::min(most, memory.guaranteed_bytes);
    else if (memory.limit_bytes) bytes = std::min(bytes, memory.limit_bytes);
  }
  return std::min(most, bytes);
}

uint64_t Admission::guaranteed_bytes(TenantId id, DeviceIndex device) const {
  const Tenant* tenant = tenants_.find(id);
  return tenant && tenant->known ? memory_on(tenant->settings, device).guaranteed_bytes : 0;
}

size_t Admission::usual_gpus(const Tenant& tenant) const {
  size_t may = allowed(tenant).size();
  return tenant.settings.gpus_wanted ? tenant.settings.gpus_wanted : may;
}

std::vector<std::vector<DeviceIndex>> Admission::usual_sets() const {
  std::set<std::vector<DeviceIndex>> sets;
  const std::vector<DeviceIndex> all = offered();
  for (const Tenant& tenant : tenants_.all()) {
    if (!tenant.known) continue;
    const std::vector<DeviceIndex> may = allowed(tenant);
    const size_t gpus = usual_gpus(tenant);
    if (gpus == all.size() && may == all) sets.insert(all);
    else if (gpus == 1)
      for (DeviceIndex device : may) sets.insert({device});
  }
  if (drained_)
    std::erase_if(sets, [this](const std::vector<DeviceIndex>& set) { return std::ranges::any_of(set, drained_); });
  return {sets.begin(), sets.end()};
}

scheduler::ServiceClass Admission::class_of(const SessionRecord& session, const Tenant& tenant) const {
  return budgets_ && budgets_->used_up(session) ? scheduler::ServiceClass::scavenger : tenant.settings.service_class;
}

scheduler::PlacementRequest Admission::placement_request(const SessionRecord& session, const Tenant& tenant,
                                                         unsigned gpus) {
  const UserConfiguration bounds = bounds_of_user(tenant.settings, session.user);
  return {.session = session.number,
          .tenant = tenant.id,
          .service_class = class_of(session, tenant),
          .gpus = unsigned(std::max<size_t>(1, gpus ? gpus : usual_gpus(tenant))),
          .memory_bytes = session.memory_bytes,
          .allowed = allowed(session, tenant),
          .tenant_sessions_max = tenant.settings.sessions_max,
          .user = session.user,
          .user_sessions_max = bounds.sessions_max,
          .user_memory_max_bytes = bounds.memory_limit_bytes};
}

// Returns as many devices as a program would get, so that a library that counts devices by NVML and opens them by CUDA
// finds them all: the devices of the same client's session, or of the tenant's newest one, and then others.
std::vector<DeviceIndex> Admission::devices_to_show(const SessionRecord& session, const Tenant& tenant, unsigned gpus) {
  std::vector<DeviceIndex> may = allowed(session, tenant);
  size_t wanted = gpus ? gpus : usual_gpus(tenant);
  const SessionRecord* like = nullptr;
  bool same_client = false;
  const std::string job = job_of(session).job;
  for (const auto& [number, other] : registry_.all()) {
    if (other.management || other.tenant_id != session.tenant_id || other.devices.empty() || job_of(other).job != job)
      continue;
    bool same = other.client_pid == session.client_pid && other.host == session.host && session.client_pid != 0;
    if (same || !same_client) like = &other;
    same_client |= same;
  }
  if (like) {
    if (same_client) return like->devices;
    std::stable_partition(may.begin(), may.end(), [&](DeviceIndex device) {
      return std::count(like->devices.begin(), like->devices.end(), device) != 0;
    });
  }
  may.resize(std::min(may.size(), std::max<size_t>(1, wanted)));
  std::sort(may.begin(), may.end());
  return may;
}

// --- requests ------------------------------------------------------------------------------------------------------

SessionRecord Admission::record_of(LoginRequest request) const {
  SessionRecord record{.tenant = request.tenant,
                       .user = std::move(request.user),
                       .memory_bytes = request.memory_bytes,
                       .peer = std::move(request.peer),
                       .security = std::move(request.security),
                       .credential = std::move(request.credential),
                       .program = std::move(request.program),
                       .host = std::move(request.host),
                       .client_pid = request.client_pid,
                       .gpu_type = std::move(request.gpu_type),
                       .management = request.management};
  if (const Tenant* tenant = tenants_.find(request.tenant)) {
    record.tenant_id = tenant->id;
    record.service_class = class_of(record, *tenant);
  }
  return record;
}

std::optional<AdmissionRefused> Admission::refusal(const SessionRecord& session, const Tenant* tenant,
                                                   unsigned gpus) const {
  if (!closed_.empty()) return AdmissionRefused{closed_cause_, closed_};
  if (!placement_) return AdmissionRefused{RefusalCause::no_device, "the server does not know its devices yet"};
  if (!tenant)
    return AdmissionRefused{RefusalCause::unauthorised,
                            fmt::format("this server has no tenant \"{}\"", session.tenant)};
  if (std::string no_place = why_no_place(*tenant, session); !no_place.empty())
    return AdmissionRefused{RefusalCause::busy, std::move(no_place)};
  if (std::string no_gpu = why_no_gpu_of_type(session, *tenant); !no_gpu.empty())
    return AdmissionRefused{RefusalCause::never_fits, std::move(no_gpu)};
  const JobOfCredential job = job_of(session);
  if (!job.job.empty() && gpus > job.gpus)
    return AdmissionRefused{RefusalCause::never_fits, fmt::format("the job {} has {} GPU{}; {} were asked for", job.job,
                                                                  job.gpus, job.gpus == 1 ? "" : "s", gpus)};
  return std::nullopt;
}

void Admission::ask(SessionId number, unsigned gpus) {
  const SessionRecord& session = *registry_.find(number);
  const Tenant* tenant = tenants_.find(session.tenant);
  const JobOfCredential job = job_of(session);
  if (!job.job.empty() && gpus == 0) gpus = job.gpus;
  if (auto refused = refusal(session, tenant, gpus)) {
    refuse(number, refused->cause, std::move(refused->reason));
  } else if (session.management) {
    events_.placed(number, devices_to_show(session, *tenant, gpus));
  } else {
    place(session, *tenant, gpus);
  }
}

AdmissionPreview Admission::preview(LoginRequest request) {
  unsigned gpus = request.gpus;
  request.management = false;
  SessionRecord session = record_of(std::move(request));
  session.number = kPreviewed;
  const Tenant* tenant = tenants_.find(session.tenant);
  const JobOfCredential job = job_of(session);
  if (!job.job.empty() && gpus == 0) gpus = job.gpus;
  if (auto refused = refusal(session, tenant, gpus)) return {.answer = std::move(*refused), .devices = {}};
  SessionMemory::Poll poll(memory_);
  previewed_ = &session;
  scheduler::PlacementAnswer answer = placement_->preview(placement_request(session, *tenant, gpus));
  previewed_ = nullptr;
  if (auto* never = std::get_if<scheduler::NeverFits>(&answer))
    return {.answer = AdmissionRefused{RefusalCause::never_fits, std::move(never->reason)}, .devices = {}};
  if (std::holds_alternative<scheduler::Placed>(answer))
    return {.answer = AdmissionGranted{}, .devices = allowed(session, *tenant)};
  if (waiting_of(tenant->id) >= tenant->settings.queued_max)
    return {.answer = AdmissionRefused{RefusalCause::busy, too_many_wait(*tenant)}, .devices = {}};
  auto& queued = std::get<scheduler::Queued>(answer);
  return {
      .answer = AdmissionQueued{queued.place, queued.waiting, std::move(queued.why), queued.round, queued.awaits_end},
      .devices = allowed(session, *tenant)};
}

void Admission::ask_again(SessionId number, unsigned gpus, uint64_t round) {
  const SessionRecord& session = *registry_.find(number);
  const Tenant* tenant = tenants_.find(session.tenant);
  if (!tenant)
    return refuse(number, RefusalCause::unauthorised,
                  fmt::format("this server has no tenant \"{}\" any more", session.tenant));
  if (std::string no_gpu = why_no_gpu_of_type(session, *tenant); !no_gpu.empty())
    return refuse(number, RefusalCause::never_fits, std::move(no_gpu));
  const JobOfCredential job = job_of(session);
  if (!job.job.empty() && gpus == 0) gpus = job.gpus;
  if (auto never = placement_->wait(placement_request(session, *tenant, gpus), round))
    return refuse(number, RefusalCause::never_fits, std::move(never->reason));
  if (!job.job.empty()) {
    jobs_->settle(job, session, {}, allowed(*tenant));
    placement_->revise(placement_request(session, *tenant, gpus));
  }
  waiting_[number] = {.gpus = gpus, .since = since(session), .vacant = true};
  notify_places();  // so that its returning client is told the current place
}

// Returns the arrival on the clock of the waiting limits.
Admission::Clock::time_point Admission::since(const SessionRecord& session) {
  auto waited = std::chrono::duration_cast<Clock::duration>(std::chrono::system_clock::now() - session.arrived);
  return Clock::now() - std::max(waited, Clock::duration::zero());
}

void Admission::client_is_back(SessionId session) {
  auto one = waiting_.find(session);
  if (one == waiting_.end()) return;
  one->second.vacant = false;
  start_waiting();
}

// Returns the reason; empty: there is a place. A program takes a place in the queue, from which it may start at once.
std::string Admission::why_no_place(const Tenant& tenant, const SessionRecord& asking) const {
  const bool management = asking.management;
  std::map<TenantId, size_t> held = places_held(asking);
  size_t all = 0;
  for (const auto& [id, places] : held) all += places;
  if (management && held[tenant.id] >= tenant.settings.management_max)
    return fmt::format("the tenant has reached its limit of sessions that query NVML ({})",
                       tenant.settings.management_max);
  const size_t places = limits_.sessions_max + (management ? 0 : limits_.queued_max);
  size_t kept = places_kept(tenants_.all(), tenant, held, places);
  if (all + kept < places) return {};
  if (all < places) return fmt::format("the server's last {} places are kept for tenants that have none", places - all);
  return management ? fmt::format("all {} sessions of the server that query NVML are in use", places)
                    : fmt::format("the server's queue is full: {} programs run or wait", all);
}

// Returns why a waiting program has to wait for a place among the running ones.
std::string Admission::why_not_now(TenantId id, const std::map<TenantId, size_t>& running) const {
  const Tenant* tenant = tenants_.find(id);
  size_t all = 0;
  for (const auto& [one, count] : running) all += count;
  const size_t kept = tenant ? places_kept(tenants_.all(), *tenant, running, limits_.sessions_max) : 0;
  if (all + kept < limits_.sessions_max) return {};
  if (all >= limits_.sessions_max) return fmt::format("all {} sessions of the server are in use", limits_.sessions_max);
  return fmt::format("the server's last {} places are kept for tenants that have none", limits_.sessions_max - all);
}

std::map<TenantId, size_t> Admission::places_held(const SessionRecord& asking) const {
  std::map<TenantId, size_t> held;
  for (const auto& [number, session] : registry_.all()) {
    if (session.management == asking.management && number != asking.number && !leaving_.contains(number))
      ++held[session.tenant_id];
  }
  return held;
}

// The other tenant has two more places than the asking one, whose waiting programs count as well: so a tenant that has
// given up a place cannot demand it back in the same way.
void Admission::make_place(const Tenant& tenant, const SessionRecord& asking) {
  std::map<TenantId, size_t> running;
  size_t own = 0;
  for (const auto& [number, session] : registry_.all()) {
    if (session.management || leaving_.contains(number) || number == asking.number) continue;
    own += session.tenant_id == tenant.id;
    running[session.tenant_id] += session.state != SessionState::queued;
  }
  const SessionRecord* chosen = nullptr;
  for (const auto& [number, session] : registry_.all()) {
    if (session.management || session.state != SessionState::detached || leaving_.contains(number)) continue;
    const size_t places = running[session.tenant_id];
    if (places < own + 2) continue;
    const size_t most = chosen ? running[chosen->tenant_id] : 0;
    if (!chosen || places > most || (places == most && session.detached_until < chosen->detached_until))
      chosen = &session;
  }
  if (!chosen) return;
  const SessionId number = chosen->number;
  leaving_.insert(number);
  events_.crowded_out(number,
                      "the server's places are all in use, its tenant has most of them, and its client is away");
}

size_t Admission::waiting_of(TenantId tenant) const {
  return size_t(std::count_if(registry_.all().begin(), registry_.all().end(), [&](const auto& one) {
    return one.second.tenant_id == tenant && one.second.state == SessionState::queued && !one.second.management;
  }));
}

void Admission::place(const SessionRecord& session, const Tenant& tenant, unsigned gpus) {
  SessionId number = session.number;
  placement_->pass_time(Clock::now().time_since_epoch());
  scheduler::PlacementAnswer answer = placement_->ask(placement_request(session, tenant, gpus));
  if (JobOfCredential job = job_of(session);
      !job.job.empty() && !std::holds_alternative<scheduler::NeverFits>(answer)) {
    auto* placed = std::get_if<scheduler::Placed>(&answer);
    jobs_->settle(job, session, placed ? placed->devices : std::vector<DeviceIndex>{}, allowed(tenant));
    // A waiting session waits for its job's GPUs only: other sessions of the job may begin at the same moment.
    if (!placed) placement_->revise(placement_request(session, tenant, gpus));
  }
  if (auto* never = std::get_if<scheduler::NeverFits>(&answer)) {
    refuse(number, RefusalCause::never_fits, std::move(never->reason));
  } else if (auto* placed = std::get_if<scheduler::Placed>(&answer)) {
    events_.placed(number, std::move(placed->devices));
  } else if (waiting_of(tenant.id) > tenant.settings.queued_max) {
    refuse(number, RefusalCause::busy, too_many_wait(tenant));
  } else {
    waiting_[number] = {.gpus = gpus, .since = Clock::now()};
    if (!why_not_now(tenant.id, places_held(session)).empty()) make_place(tenant, session);
    notify_places();  // the sessions behind it, too
  }
}

void Admission::adopted(SessionId number) {
  const SessionRecord* session = registry_.find(number);
  if (session && !session->management && placement_)
    placement_->adopt(number, session->tenant_id, session->memory_bytes, session->devices, session->user);
}

// --- the queue -----------------------------------------------------------------------------------------------------

void Admission::start_waiting() {
  start_again_ = true;
  if (starting_ || !placement_ || !closed_.empty()) return;  // starting: a start below has called this again
  starting_ = true;
  auto may = [this](SessionId session) {
    auto one = waiting_.find(session);
    return one != waiting_.end() && !one->second.vacant;
  };
  auto start = [&] {
    SessionMemory::Poll poll(memory_);
    return placement_->start_waiting(may);
  };
  while (std::exchange(start_again_, false)) {
    for (auto& [session, placed] : start()) {
      waiting_.erase(session);
      if (registry_.find(session)) {
        events_.placed(session, std::move(placed.devices));
        continue;
      }
      placement_->leave(session);  // left while earlier ones started
      if (memory_) memory_->release(session);
    }
  }
  starting_ = false;
  notify_places();
}

void Admission::notify_places() {
  if (!placement_) return;
  auto waiting = [&] {
    SessionMemory::Poll poll(memory_);
    return placement_->waiting();
  };
  for (const auto& [session, queued] : waiting()) notify(session, queued);
}

void Admission::notify(SessionId session, const scheduler::Queued& queued) {
  const SessionRecord* record = registry_.find(session);
  auto one = waiting_.find(session);
  if (!record || one == waiting_.end()) return;
  one->second.awaits_end = queued.awaits_end;
  std::string why = queued.why;
  if (suspends_for_ && suspends_for_(session)) why += "; idle sessions are being suspended for it";
  if (record->place == queued.place && record->waiting == queued.waiting && record->why == why) return;
  events_.queued(session,
                 AdmissionQueued{queued.place, queued.waiting, std::move(why), queued.round, queued.awaits_end});
}

std::vector<DeviceIndex> Admission::awaited_gpus(SessionId number) {
  auto one = waiting_.find(number);
  const SessionRecord* session = registry_.find(number);
  const Tenant* tenant = session ? tenants_.find(session->tenant) : nullptr;
  if (one == waiting_.end() || !one->second.awaits_end || !tenant) return {};
  return allowed(*session, *tenant);
}

std::vector<scheduler::MemoryWait> Admission::waiting_for_memory() {
  if (!placement_ || !closed_.empty()) return {};
  SessionMemory::Poll poll(memory_);
  auto all = placement_->waiting_for_memory();
  std::erase_if(all, [this](const scheduler::MemoryWait& one) {
    const auto waiting = waiting_.find(one.session);
    return waiting == waiting_.end() || waiting->second.vacant;
  });
  return all;
}

void Admission::over(SessionId session) {
  waiting_.erase(session);
  leaving_.erase(session);
  if (memory_) memory_->release(session);
  if (placement_) {
    placement_->cancel(session);
    placement_->leave(session);
  }
  start_waiting();
}

void Admission::reconsider(Clock::time_point now) {
  if (placement_) {
    SessionMemory::Poll poll(memory_);
    placement_->pass_time(now.time_since_epoch());
  }
  start_waiting();
}

void Admission::refuse_overdue(Clock::time_point now) {
  std::vector<std::pair<SessionId, std::string>> overdue;
  for (const auto& [number, one] : waiting_) {
    const SessionRecord* session = registry_.find(number);
    const Tenant* tenant = session ? tenants_.find(session->tenant_id) : nullptr;
    if (!tenant || tenant->settings.queue_time_max_ms == 0) continue;
    std::chrono::milliseconds limit(tenant->settings.queue_time_max_ms);
    if (now - one.since >= limit)
      overdue.emplace_back(number,
                           fmt::format("it has waited for {} s, the longest that its tenant's programs may wait",
                                       limit.count() / 1000.0));
  }
  for (auto& [number, why] : overdue) refuse(number, RefusalCause::waited_too_long, std::move(why));
}

void Admission::reload(AdmissionLimits limits) {
  limits_ = std::move(limits);
  if (!placement_) return;
  placement_->set_sessions_max(limits_.sessions_per_gpu_max);
  revise_all();
}

void Admission::revise_all() {
  if (!placement_) return;
  registry_.reclassify([this](const SessionRecord& session) {
    const Tenant* tenant = tenants_.find(session.tenant_id);
    return tenant ? class_of(session, *tenant) : session.service_class;
  });
  for (const auto& [session, queued] : placement_->waiting()) {
    const SessionRecord* record = registry_.find(session);
    auto one = waiting_.find(session);
    if (!record || one == waiting_.end()) continue;
    const Tenant* tenant = tenants_.find(record->tenant_id);
    if (!tenant || !tenant->known) {
      refuse(session, RefusalCause::unauthorised,
             fmt::format("this server has no tenant \"{}\" any more", record->tenant));
    } else if (std::string no_gpu = why_no_gpu_of_type(*record, *tenant); !no_gpu.empty()) {
      refuse(session, RefusalCause::never_fits, std::move(no_gpu));
    } else if (auto never = placement_->revise(placement_request(*record, *tenant, one->second.gpus))) {
      refuse(session, RefusalCause::never_fits, std::move(never->reason));
    }
  }
  start_waiting();
}

void Admission::close(RefusalCause cause, std::string reason) {
  closed_cause_ = cause;
  closed_ = std::move(reason);
  std::vector<SessionId> before_their_grant;
  for (const auto& [number, session] : registry_.all()) {
    if (session.state == SessionState::queued || session.state == SessionState::starting)
      before_their_grant.push_back(number);
  }
  for (SessionId number : before_their_grant) refuse(number, cause, closed_);
}

}  // namespace gpuwire::server
