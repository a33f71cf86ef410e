// The user page: whose the sessions of a tenant are, and how much memory each user of the tenant may have. Memory that
// the broker shares with all workers of one tenant, beside the tenant's page; only the broker writes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "server/base/shared_page.hpp"
#include "server/ledger/page/tenant_page.hpp"

namespace gpuwire::server {

// By slots of the tenant's page.
struct UserPage {
  static constexpr uint64_t kMagic = 0x3165'6761'7072'7375;  // "usrpage1"
  static constexpr uint32_t kVersion = 1;
  static constexpr const char* kName = "users of a tenant";

  PageHead head;
  std::atomic<uint64_t> user[kPageSlotsMax];   // user_key() of the session's user; 0: no session, or no particular user
  std::atomic<uint64_t> limit[kPageSlotsMax];  // this user's, on each device; 0: no bound but the tenant's
};

// The same for a name in every process, now and after a restart; 0 for no name. A collision needs names that the
// administrator chose for it.
uint64_t user_key(std::string_view name);

// The memory that the user's sessions hold in a column, as held_by_all() counts it; at most kPageBytesMax. Memory of
// ended sessions that others still hold (kLeftSlot) belongs to the tenant alone.
uint64_t held_by_user(const TenantPage& page, const UserPage& users, uint32_t column, uint64_t user);
// The same for what they use.
uint64_t used_by_user(const TenantPage& page, const UserPage& users, uint32_t column, uint64_t user);

}  // namespace gpuwire::server
