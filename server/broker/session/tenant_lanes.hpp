// TenantLanes bounds the lanes (protocol/link) of each tenant's sessions together.
#pragma once

#include <map>
#include <string>

#include "server/broker/session/session_parts.hpp"

namespace gpuwire::server {

// Lanes are connections, threads and descriptors of workers on the machine that all tenants share, so one tenant's
// number is bounded. A session gets its lanes when it begins and keeps them, used or not, until it is over. A session
// for which too few are left has fewer or none, and otherwise works as usual. The broker's thread only.
class TenantLanes final : public SessionAttachments {
 public:
  tl::expected<void, std::string> attach(const SessionRecord& session, SessionSpec& spec,
                                         ipc::SessionDescriptors& descriptors) override;
  void note(const SessionRecord& session, KeptSession& kept) const override;
  tl::expected<void, std::string> adopt(const SessionRecord& session, const KeptSession& kept,
                                        KeptEntry& descriptors) override;
  void ended(const SessionRecord& session) override;

  // Returns the number of lanes that the tenant's sessions hold.
  unsigned held_by(const std::string& tenant) const;

 private:
  void give(const SessionRecord& session, unsigned lanes);

  struct Held {
    std::string tenant;
    unsigned lanes;
  };
  // The sessions with lanes.
  std::map<scheduler::SessionId, Held> sessions_;
};

}  // namespace gpuwire::server
