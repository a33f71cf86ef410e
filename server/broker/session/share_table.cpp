#include "server/broker/session/share_table.hpp"

#include <algorithm>

#include "server/broker/limits.hpp"

namespace gpuwire::server {
namespace {

// Compares every byte, so that the time does not reveal how much of a guess was right.
bool same(const uint8_t* a, const uint8_t* b, size_t bytes) {
  uint8_t differences = 0;
  for (size_t i = 0; i < bytes; ++i) differences = uint8_t(differences | (a[i] ^ b[i]));
  return differences == 0;
}

bool same(const std::string& a, const std::string& b) {
  return a.size() == b.size() &&
         same(reinterpret_cast<const uint8_t*>(a.data()), reinterpret_cast<const uint8_t*>(b.data()), a.size());
}

}  // namespace

ShareLimits share_limits(size_t descriptors) {
  // Shares get half of them, and each share has two: its own, and the copy for a restarted keeper.
  size_t all = descriptors > kDescriptorsReserved ? (descriptors - kDescriptorsReserved) / 4 : 0;
  return {std::min(all, kSharesMax), std::min(all / 2, kSharesPerTenantMax), std::min(all / 4, kSharesPerSessionMax)};
}

bool ShareTable::add(const void* owner, const ShareToken& token, uint32_t kind, ShareGroup group,
                     OwnedDescriptor descriptor) {
  size_t of_session = 0, of_tenant = 0;
  for (const Share& share : shares_) {
    if (same(share.token.data(), token.data(), token.size())) return false;
    of_session += share.owner == owner;
    of_tenant += share.group.tenant == group.tenant;
  }
  if (!descriptor || shares_.size() >= limits_.all || of_tenant >= limits_.per_tenant ||
      of_session >= limits_.per_session)
    return false;
  shares_.push_back({owner, token, kind, std::move(group), std::move(descriptor)});
  return true;
}

int ShareTable::find(const ShareToken& token, uint32_t kind, const ShareGroup& group) const {
  int found = -1;
  for (const Share& share : shares_) {
    bool right = same(share.token.data(), token.data(), token.size()) & (share.kind == kind) &
                 same(share.group.tenant, group.tenant) & same(share.group.user, group.user);
    if (right) found = share.descriptor.get();
  }
  return found;
}

bool ShareTable::has(const void* owner, const ShareToken& token) const {
  return std::any_of(shares_.begin(), shares_.end(), [&](const Share& share) {
    return share.owner == owner && same(share.token.data(), token.data(), token.size());
  });
}

bool ShareTable::withdraw(const void* owner, const ShareToken& token) {
  return shares_.remove_if([&](const Share& share) {
    return share.owner == owner && same(share.token.data(), token.data(), token.size());
  }) != 0;
}

std::vector<ShareToken> ShareTable::forget(const void* owner) {
  std::vector<ShareToken> tokens;
  for (const Share& share : shares_) {
    if (share.owner == owner) tokens.push_back(share.token);
  }
  shares_.remove_if([&](const Share& share) { return share.owner == owner; });
  return tokens;
}

}  // namespace gpuwire::server
