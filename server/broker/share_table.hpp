// What sessions share with each other: the driver's descriptors, each under a random token.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <string>

#include "server/broker/handoff.hpp"

namespace gpuwire::server {

using ShareToken = std::array<uint8_t, 16>;

// The broker's thread only.
class ShareTable {
 public:
  // `owner`: the session's worker; its shares end with it. False: the token is taken, or there are too many.
  bool add(const void* owner, const ShareToken& token, uint32_t kind, std::string tenant, OwnedDescriptor descriptor);
  // The table's own descriptor; -1: there is none of this kind and tenant. Takes the same time whichever tokens there are.
  int find(const ShareToken& token, uint32_t kind, const std::string& tenant) const;
  // One, or all, of those that this owner has added.
  void withdraw(const void* owner, const ShareToken& token);
  void forget(const void* owner);
  size_t size() const { return shares_.size(); }

 private:
  struct Share {
    const void* owner;
    ShareToken token;
    uint32_t kind;
    std::string tenant;
    OwnedDescriptor descriptor;
  };
  std::list<Share> shares_;
};

}  // namespace gpuwire::server
