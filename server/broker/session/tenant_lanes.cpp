#include "server/broker/session/tenant_lanes.hpp"

#include <algorithm>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

namespace {
constexpr unsigned kLanesUseful = 2;  // one lane is no faster than the session's own connection
}

tl::expected<void, std::string> TenantLanes::attach(const SessionRecord& session, SessionSpec& spec,
                                                    ipc::SessionDescriptors&) {
  unsigned left = kLanesPerTenantMax - std::min(kLanesPerTenantMax, held_by(session.tenant));
  unsigned lanes = std::min<unsigned>(spec.lanes_max, left);
  // Only sessions that outlive their connection have lanes.
  if (lanes < kLanesUseful || spec.resume_grace_ms == 0) lanes = 0;
  spec.lanes_max = lanes;
  give(session, lanes);
  return {};
}

void TenantLanes::note(const SessionRecord& session, KeptSession& kept) const {
  auto held = sessions_.find(session.number);
  kept.lanes = held == sessions_.end() ? 0 : held->second.lanes;
}

tl::expected<void, std::string> TenantLanes::adopt(const SessionRecord& session, const KeptSession& kept, KeptEntry&) {
  give(session, kept.lanes);
  return {};
}

void TenantLanes::ended(const SessionRecord& session) { sessions_.erase(session.number); }

unsigned TenantLanes::held_by(const std::string& tenant) const {
  unsigned lanes = 0;
  for (const auto& [session, held] : sessions_)
    if (held.tenant == tenant) lanes += held.lanes;
  return lanes;
}

void TenantLanes::give(const SessionRecord& session, unsigned lanes) {
  if (lanes != 0) sessions_.insert_or_assign(session.number, Held{session.tenant, lanes});
}

}  // namespace gpuwire::server
