// Which sessions want their devices now.
#include <algorithm>

#include "scheduler/policy_state.hpp"

namespace gpuwire::scheduler {
namespace {

// A session whose gate is open and whose submission does not come through it within this does not want the device.
constexpr Duration kComeMax = std::chrono::microseconds(2500);
// Sessions count as running side by side when each wanted the device within this.
constexpr Duration kActiveFor = std::chrono::milliseconds(50);
// A session that comes back this soon is waited for: two switches and the little that others could do meanwhile are worth less than its time.
constexpr Duration kShortGap = std::chrono::milliseconds(2);
constexpr Duration kLingerMax = std::chrono::microseconds(2500);

}  // namespace

bool Policy::State::active(const Session& session) const { return session.ever_active && now - session.active_at < kActiveFor; }

bool Policy::State::lingers(const Session& session) const {
  const bool holds = session.leased || (session.gate.open && co_runs(session));
  return holds && !session.wants && now < session.quiet_since() + session.linger;
}

// Of the time since the last decision.
RunMode Policy::State::run_mode(const Session& session) const {
  switch (devices[session.devices.front()].regime) {
    case Regime::free: return RunMode::unmeasured;
    case Regime::co_run: return session.gate.open ? RunMode::together : RunMode::unmeasured;
    case Regime::lease: break;
  }
  return RunMode::apart;
}

// It wants the device again after its lease has lapsed.
void Policy::State::woke(Session& session) {
  session.lapsed = false;
  const Duration gap = now - session.quiet_since();
  session.return_gap = session.return_gap == Duration::max() ? gap : (3 * session.return_gap + std::min(gap, 4 * kShortGap)) / 4;
  session.linger = session.return_gap > kShortGap ? settings.linger : std::clamp(session.return_gap * 3 / 2, settings.linger, kLingerMax);
  claims.push_back({&session, ++order, true});
}

void Policy::State::update_wants() {
  for (auto& [id, session] : sessions) {
    const Observation& seen = session->seen;
    const bool does_not_come = session->gate.open && seen.waiting && seen.submissions == session->submissions_at_opening && now > session->opened_at + kComeMax;
    // What is in flight behind a closed gate drains, or never will: it takes no lease.
    const bool wants = (seen.in_flight && session->gate.open) || (seen.waiting && !does_not_come);
    const bool works = wants || seen.in_flight;
    if (works && !active(*session)) newcomer = true;
    if (wants && session->lapsed) woke(*session);
    session->wants = wants;
    if (works) {
      session->ever_active = true;
      session->active_at = now;
    }
    session->candidate = wants || lingers(*session);
    session->selected = false;
  }
  for (Device& device : devices) {
    const auto index = static_cast<DeviceIndex>(&device - devices.data());
    for (Tenant* tenant : device.ring) share(*tenant, index).awake = false;
    for (const Session* session : device.sessions) share(*session->tenant, index).awake |= session->candidate;
    for (Tenant* tenant : device.ring) share(*tenant, index).slept |= !share(*tenant, index).awake;
  }
}

}  // namespace gpuwire::scheduler
