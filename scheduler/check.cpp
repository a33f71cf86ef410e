// The invariants that hold after every decision, whatever was observed.
#include <algorithm>

#include "scheduler/policy_state.hpp"

namespace gpuwire::scheduler {
namespace {

std::string of(const char* what, DeviceIndex device) {
  return std::string(what) + " on device " + std::to_string(device);
}
std::string of(const char* what, const Session& session) {
  return std::string(what) + ", session " + std::to_string(static_cast<uint64_t>(session.id));
}

}  // namespace

std::string Policy::State::check() const {
  for (DeviceIndex index = 0; index < devices.size(); ++index) {
    const Device& device = devices[index];
    if (!device.known) continue;
    const Duration accounted = device.time.charged() + device.time.system() + device.time.idle();
    if (accounted != device.time.settled_time()) return of("charges do not add up to the time", index);
    if (device.time.settled() > now) return of("settled in the future", index);
    Rank open_rank = Rank::scavenger;
    size_t leases = 0, open = 0;
    for (const Session* session : device.sessions) {
      leases += session->leased ? 1 : 0;
      if (session->leased && device.holder != session) return of("a lease that its device does not know", *session);
      if (session->gate.open && session->candidate) {
        ++open;
        open_rank = std::min(open_rank, session->rank);
      }
    }
    for (const Tenant* tenant : device.ring) {
      if (tenant->devices[index].deficit > 2 * tenant->devices[index].turn)
        return of("more credit than two turns", index);
    }
    if (leases > 1) return of("two leases", index);
    if (device.holder != nullptr && leases != 1) return of("a holder without a lease", index);
    if (device.regime != Regime::co_run && open > 1) return of("two gates are open", index);
    for (const Session* session : device.sessions) {
      if (session->candidate && session->devices.size() == 1 && !session->selected) {
        const auto serves = [&](const Session* other) { return other->selected && other->rank <= session->rank; };
        if (std::none_of(device.sessions.begin(), device.sessions.end(), serves))
          return of("waits, and nobody of its rank or above is served", *session);
      }
      if (session->gate.open && session->candidate && session->rank != open_rank)
        return of("a lower class runs beside a higher one", *session);
    }
  }
  for (const auto& [id, session] : sessions) {
    const bool holds_all = all_devices(*session, [&](const Device& device) { return device.holder == session.get(); });
    if (session->leased && !holds_all) return of("holds a part of its devices", *session);
  }
  return {};
}

}  // namespace gpuwire::scheduler
