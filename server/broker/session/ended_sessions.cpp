#include "server/broker/session/ended_sessions.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gpuwire::server {

void EndedSessions::add(const std::string& tenant, const WireId& session, std::string why) {
  if (why.size() > kEndedCauseBytesMax) why.resize(kEndedCauseBytesMax);
  if (auto own = tenants_.find(tenant); own != tenants_.end() && own->second.size() >= limits_.per_tenant)
    drop_oldest(tenant);
  // The tenant with most reasons makes room.
  if (size_ >= limits_.all) {
    auto most = std::max_element(tenants_.begin(), tenants_.end(),
                                 [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    if (most != tenants_.end()) drop_oldest(std::string(most->first));
  }
  tenants_[tenant].push_back({session, std::move(why)});
  ++size_;
}

void EndedSessions::drop_oldest(const std::string& tenant) {
  auto found = tenants_.find(tenant);
  found->second.pop_front();
  if (found->second.empty()) tenants_.erase(found);
  --size_;
}

std::string EndedSessions::why(const std::string& tenant, const std::string& session) const {
  auto found = tenants_.find(tenant);
  if (found == tenants_.end() || session.size() != sizeof(WireId)) return {};
  for (const Ended& one : found->second) {
    if (std::memcmp(one.session.data(), session.data(), session.size()) == 0) return one.why;
  }
  return {};
}

std::string EndedSessions::why(const std::function<bool(const std::string& tenant)>& told,
                               const std::string& session) const {
  for (const auto& [tenant, ended] : tenants_) {
    if (std::string known = why(tenant, session); !known.empty() && told(tenant)) return known;
  }
  return {};
}

}  // namespace gpuwire::server
