#include "server/control/usage/recent_sessions.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "server/control/usage/ended_line.hpp"

namespace gpuwire::server {

void RecentSessions::make_room_for(const std::string& tenant) {
  if (ended_.size() < kRecentTenantsMax || ended_.contains(tenant)) return;
  ended_.erase(
      std::ranges::min_element(ended_, {}, [](const auto& of_tenant) { return of_tenant.second.back().ended_unix_s; }));
}

void RecentSessions::add_line(std::string_view text) {
  if (auto wait = read_wait_line(text)) {
    waits_[wait->session] = {wait->waited_s, std::move(wait->waited_for)};
    if (waits_.size() > kRecentWaitsMax) waits_.erase(waits_.begin());
    return;
  }
  auto line = read_ended_line(text);
  const auto ended = line ? unix_time_of(line->time) : std::nullopt;
  if (!ended) return;
  EndedSession session{.session = line->session,
                       .tenant = std::move(line->tenant),
                       .user = std::move(line->user),
                       .program = std::move(line->program),
                       .host = std::move(line->host),
                       .cause = std::move(line->cause),
                       .gpus = std::move(line->gpus),
                       .begun_unix_s = *ended - line->session_s,
                       .ended_unix_s = *ended,
                       .gpu_s = line->gpu_s};
  if (auto wait = waits_.extract(session.session)) {
    session.waited_s = wait.mapped().seconds;
    session.waited_for = std::move(wait.mapped().reason);
  }
  make_room_for(session.tenant);
  auto& of_tenant = ended_[session.tenant];
  of_tenant.push_back(std::move(session));
  if (of_tenant.size() > kRecentPerTenantMax) of_tenant.pop_front();
}

std::vector<const EndedSession*> RecentSessions::newest(const std::string& tenant, size_t count_max) const {
  std::vector<const EndedSession*> found;
  for (const auto& [name, sessions] : ended_)
    if (tenant.empty() || name == tenant)
      for (auto session = sessions.rbegin(); session != sessions.rend(); ++session) found.push_back(&*session);
  std::ranges::stable_sort(found, std::greater<>(), &EndedSession::ended_unix_s);
  found.resize(std::min(found.size(), count_max));
  return found;
}

}  // namespace gpuwire::server
