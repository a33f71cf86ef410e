// How many lanes (protocol/link) each tenant's sessions may have together.
#pragma once

#include <map>
#include <string>

#include "server/broker/session/session_parts.hpp"

namespace gpuwire::server {

// Lanes are connections, threads and descriptors of workers on the machine that all tenants share, so what one tenant
// may have of them is bounded. A session is given its lanes when it begins and keeps them, used or not, until it is
// over; one for which too few are left has fewer, or none, and lacks nothing else. The broker's thread only.
class TenantLanes final : public SessionAttachments {
 public:
  tl::expected<void, std::string> attach(const SessionRecord& session, SessionSpec& spec,
                                         ipc::SessionDescriptors& descriptors) override;
  void note(const SessionRecord& session, KeptSession& kept) const override;
  tl::expected<void, std::string> adopt(const SessionRecord& session, const KeptSession& kept,
                                        KeptEntry& descriptors) override;
  void ended(const SessionRecord& session) override;

  // That the tenant's sessions hold.
  unsigned held_by(const std::string& tenant) const;

 private:
  void give(const SessionRecord& session, unsigned lanes);

  struct Held {
    std::string tenant;
    unsigned lanes;
  };
  std::map<scheduler::SessionId, Held> sessions_;  // those that have any
};

}  // namespace gpuwire::server
