// ShareTable has the driver's descriptors that sessions share with each other, each under a random token.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "server/ipc/message.hpp"

namespace gpuwire::server {

using ipc::ShareToken;

struct ShareLimits {
  size_t all = 0, per_tenant = 0, per_session = 0;
};
// Returns the limits for a process that may have so many descriptors: shares, of two descriptors each, get half of the
// descriptors beyond the reserve, one tenant half of that, one session half of a tenant's; limits.hpp bounds each.
ShareLimits share_limits(size_t descriptors);

// The sessions that may use a share: a tenant's, and among them those of one user name, which the workers set.
struct ShareGroup {
  std::string tenant, user;
};

// The broker's thread only.
class ShareTable {
 public:
  explicit ShareTable(ShareLimits limits) : limits_(limits) {}

  // `owner`: the session's worker; its shares end with it. Returns false if the token is taken or a limit is reached.
  bool add(const void* owner, const ShareToken& token, uint32_t kind, ShareGroup group, OwnedDescriptor descriptor);
  // Returns the table's own descriptor; -1: there is none of this kind and group. The time does not depend on the
  // tokens.
  int find(const ShareToken& token, uint32_t kind, const ShareGroup& group) const;
  // Whether this owner has added it.
  bool has(const void* owner, const ShareToken& token) const;
  // Remove one share, or all, of this owner. withdraw() returns false if there was none; forget() returns the removed
  // tokens.
  bool withdraw(const void* owner, const ShareToken& token);
  std::vector<ShareToken> forget(const void* owner);
  size_t size() const { return shares_.size(); }

 private:
  struct Share {
    const void* owner;
    ShareToken token;
    uint32_t kind;
    ShareGroup group;
    OwnedDescriptor descriptor;
  };
  const ShareLimits limits_;
  std::list<Share> shares_;
};

}  // namespace gpuwire::server
