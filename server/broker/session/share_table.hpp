// What sessions share with each other: the driver's descriptors, each under a random token.
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
// For a process that may have so many descriptors: half of what is not reserved, with two for each share, of that half
// for one tenant, of that half for one session; and no more than limits.hpp says.
ShareLimits share_limits(size_t descriptors);

// Among whom something is shared: a tenant, and of its users those whom its workers take for one.
struct ShareGroup {
  std::string tenant, user;
};

// The broker's thread only.
class ShareTable {
 public:
  explicit ShareTable(ShareLimits limits) : limits_(limits) {}

  // `owner`: the session's worker; its shares end with it. False: the token is taken, or there are too many.
  bool add(const void* owner, const ShareToken& token, uint32_t kind, ShareGroup group, OwnedDescriptor descriptor);
  // The table's own descriptor; -1: there is none of this kind and group. Takes the same time whichever tokens there
  // are.
  int find(const ShareToken& token, uint32_t kind, const ShareGroup& group) const;
  // Whether this owner has added it.
  bool has(const void* owner, const ShareToken& token) const;
  // One, or all, of those that this owner has added. False: there was none; the tokens of those that there were.
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
