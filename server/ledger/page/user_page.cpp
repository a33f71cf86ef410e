#include "server/ledger/page/user_page.hpp"

#include <algorithm>

namespace gpuwire::server {
namespace {

template <class Of>
uint64_t sum_of_user(const TenantPage& page, const UserPage& users, uint64_t user, Of&& bytes_of) {
  const uint32_t slots = std::min(page.slots.load(), kPageSlotsMax);
  uint64_t sum = 0;
  for (uint32_t slot = kLeftSlot + 1; slot < slots; ++slot)
    if (users.user[slot].load() == user) sum += bytes_of(slot);
  return bounded(sum);
}

}  // namespace

// FNV-1a, 64 bits.
uint64_t user_key(std::string_view name) {
  if (name.empty()) return 0;
  uint64_t key = 0xcbf2'9ce4'8422'2325;
  for (const char c : name) key = (key ^ uint8_t(c)) * 0x100'0000'01b3;
  return std::max<uint64_t>(key, 1);
}

uint64_t held_by_user(const TenantPage& page, const UserPage& users, uint32_t column, uint64_t user) {
  const PageColumn& of = page.column[column];
  return sum_of_user(page, users, user, [&](uint32_t slot) {
    return present(std::max(bounded(of.used[slot].load()), bounded(of.reserved[slot].load())),
                   bounded(of.away[slot].load()));
  });
}

uint64_t used_by_user(const TenantPage& page, const UserPage& users, uint32_t column, uint64_t user) {
  const PageColumn& of = page.column[column];
  return sum_of_user(page, users, user, [&](uint32_t slot) {
    return present(bounded(of.used[slot].load()), bounded(of.away[slot].load()));
  });
}

}  // namespace gpuwire::server
