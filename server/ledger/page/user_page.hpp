// The user page has the user of each session of a tenant, and each user's memory limit. The broker shares it with all
// workers of the tenant, in addition to the tenant's page; only the broker writes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "server/base/shared_page.hpp"
#include "server/ledger/page/tenant_page.hpp"

namespace gpuwire::server {

// The arrays are indexed by slots of the tenant's page.
struct UserPage {
  // "usrpage1".
  static constexpr uint64_t kMagic = 0x3165'6761'7072'7375;
  static constexpr uint32_t kVersion = 1;
  static constexpr const char* kName = "users of a tenant";

  PageHead head;
  // user_key() of the session's user; 0: no session, or no particular user.
  std::atomic<uint64_t> user[kPageSlotsMax];
  // This user's limit on each device; 0: only the tenant's limit.
  std::atomic<uint64_t> limit[kPageSlotsMax];
};

// Returns the key of a user's name, which is the same in every process and after a restart; 0 for an empty name.
// Collisions do not occur by chance; only an administrator could construct one.
uint64_t user_key(std::string_view name);

// The memory that the user's sessions hold in a column, as held_by_all() counts it; at most kPageBytesMax. Memory of
// ended sessions that others still hold (kLeftSlot) belongs to the tenant alone.
uint64_t held_by_user(const TenantPage& page, const UserPage& users, uint32_t column, uint64_t user);
// The memory that the user's sessions use in a column.
uint64_t used_by_user(const TenantPage& page, const UserPage& users, uint32_t column, uint64_t user);

}  // namespace gpuwire::server
