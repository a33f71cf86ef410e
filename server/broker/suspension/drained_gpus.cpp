#include "server/broker/suspension/drained_gpus.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/broker/limits.hpp"

namespace gpuwire::server {
namespace {

bool has_gpu(const SessionRecord& session, scheduler::DeviceIndex gpu) {
  return !session.management && std::ranges::find(session.devices, gpu) != session.devices.end();
}

bool has_memory(const SessionRecord& session) {
  return session.state == SessionState::running || session.state == SessionState::detached;
}

}  // namespace

DrainedGpus::DrainedGpus(DrainParts parts) : parts_(std::move(parts)), timer_(parts_.io) {
  parts_.suspensions.set_why_held([this](const SessionRecord& session) { return why_held(session); });
}

void DrainedGpus::devices_known(std::span<const ServerDevice> devices) {
  for (const ServerDevice& device : devices) uuids_.push_back(device.uuid);
  if (parts_.file.empty()) return;
  auto uuids = read_drain_file(parts_.file);
  if (!uuids) return spdlog::error("no GPU is drained: {}", uuids.error());
  for (const std::string& uuid : *uuids) {
    const auto found = std::ranges::find(uuids_, uuid);
    if (found == uuids_.end()) {
      absent_.insert(uuid);
      continue;
    }
    const auto gpu = DeviceIndex(found - uuids_.begin());
    drained_.insert(gpu);
    spdlog::warn("GPU {} is drained since an earlier server: no session begins on it until `gpuwire admin undrain {}`",
                 gpu, gpu);
  }
  poll_later();
}

// --- administrators ------------------------------------------------------------------------------------------------

tl::expected<DrainedGpus::Drain, std::string> DrainedGpus::drain(DeviceIndex gpu) {
  if (gpu >= uuids_.size()) return drain_of(gpu);
  const bool changed = drained_.insert(gpu).second;
  if (changed) {
    save();
    if (parts_.changed) parts_.changed();
    poll();
  }
  return Drain{true, changed, sessions_on(gpu)};
}

tl::expected<DrainedGpus::Drain, std::string> DrainedGpus::undrain(DeviceIndex gpu) {
  if (gpu >= uuids_.size()) return drain_of(gpu);
  const bool changed = drained_.erase(gpu) != 0;
  if (changed) {
    save();
    if (parts_.changed) parts_.changed();
  }
  return Drain{false, changed, sessions_on(gpu)};
}

tl::expected<DrainedGpus::Drain, std::string> DrainedGpus::drain_of(DeviceIndex gpu) {
  if (gpu >= uuids_.size()) return tl::unexpected(fmt::format("there is no GPU {}", gpu));
  return Drain{is_drained(gpu), false, sessions_on(gpu)};
}

void DrainedGpus::save() const {
  if (parts_.file.empty())
    return spdlog::warn("drained GPUs are forgotten when the server ends: it has no fixed address");
  std::set<std::string> uuids = absent_;
  for (DeviceIndex gpu : drained_) uuids.insert(uuids_[gpu]);
  if (auto written = write_drain_file(parts_.file, uuids); !written)
    spdlog::error("drained GPUs are forgotten when the server ends: {}", written.error());
}

// --- sessions ------------------------------------------------------------------------------------------------------

std::string DrainedGpus::why_held(const SessionRecord& session) const {
  for (DeviceIndex gpu : session.devices)
    if (is_drained(gpu)) return fmt::format("GPU {} is drained", gpu);
  return {};
}

DrainedGpus::Session DrainedGpus::state_of(const SessionRecord& session) const {
  switch (parts_.suspensions.phase_of(session.number)) {
    case SuspensionPhase::suspended:
    case SuspensionPhase::awaiting_memory:
      return {session.number, true, fmt::format("suspended, {} MiB", (session.suspended_bytes + 0xFFFFF) >> 20)};
    case SuspensionPhase::quiescing:
    case SuspensionPhase::moving_out:
    case SuspensionPhase::recalled: return {session.number, false, "it is being suspended"};
    case SuspensionPhase::moving_in: return {session.number, false, "it is returning to the device"};
    case SuspensionPhase::lost: return {session.number, false, "it is ending"};
    case SuspensionPhase::running: break;
  }
  if (!has_memory(session)) return {session.number, false, fmt::format("it is {}", name_of(session.state))};
  if (!parts_.idle(session.number)) return {session.number, false, "its program works"};
  const auto attempt = attempts_.find(session.number);
  const bool refused = attempt != attempts_.end() && !attempt->second.why.empty();
  return {session.number, false, refused ? attempt->second.why : "it is being suspended"};
}

std::vector<DrainedGpus::Session> DrainedGpus::sessions_on(DeviceIndex gpu) const {
  std::vector<Session> sessions;
  for (const auto& [number, session] : parts_.registry.all())
    if (has_gpu(session, gpu)) sessions.push_back(state_of(session));
  return sessions;
}

bool DrainedGpus::has_memory_of_sessions(DeviceIndex gpu) const {
  return std::ranges::any_of(sessions_on(gpu), [](const Session& session) { return !session.away; });
}

void DrainedGpus::poll() {
  std::vector<const SessionRecord*> next;
  for (const auto& [number, session] : parts_.registry.all()) {
    const bool here = !session.management && has_memory(session) && !why_held(session).empty();
    if (!here || parts_.suspensions.phase_of(number) != SuspensionPhase::running) continue;
    // A session that works is not asked, because the question would delay it.
    const Attempt& attempt = attempts_[number];
    if (!attempt.under_way && attempt.next <= parts_.now() && parts_.idle(number)) next.push_back(&session);
  }
  for (const SessionRecord* session : next) suspend(*session);
  poll_later();
}

void DrainedGpus::suspend(const SessionRecord& session) {
  attempts_[session.number].under_way = true;
  const SuspensionRequester requester{.name = "an administrator, who drains its GPU"};
  parts_.suspensions.suspend(session.number, requester,
                             lifetime_.guard([this, number = session.number](const Suspensions::Answer& answer) {
                               auto found = attempts_.find(number);
                               if (found == attempts_.end()) return;
                               Attempt& attempt = found->second;
                               attempt.under_way = false;
                               attempt.why = answer ? std::string() : answer.error();
                               attempt.count = answer ? 0 : std::min(attempt.count + 1, kDrainDoublings);
                               attempt.next = parts_.now() + std::chrono::milliseconds(kDrainRetryMs << attempt.count);
                             }));
}

void DrainedGpus::poll_later() {
  if (drained_.empty() || std::exchange(polling_, true)) return;
  timer_.expires_after(std::chrono::milliseconds(kDrainPollMs));
  timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    polling_ = false;
    if (!error) poll();
  }));
}

void DrainedGpus::ended(const SessionRecord& session) { attempts_.erase(session.number); }

}  // namespace gpuwire::server
