#include "server/ledger/page/tenant_page.hpp"

#include <algorithm>

namespace gpuwire::server {
namespace {

// Sums over the slots below `slots`, and other slots with a reservation. Each word is read once, since a second read
// may return another value.
template <class Reserved>
uint64_t sum_of_slots(const TenantPage& page, uint32_t column, Reserved&& reserved_of) {
  const uint32_t slots = std::min(page.slots.load(), kPageSlotsMax);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < kPageSlotsMax; ++i) {
    uint64_t used = i < slots ? bounded(page.column[column].used[i].load()) : 0;
    sum += present(std::max(used, reserved_of(i, slots)), bounded(page.column[column].away[i].load()));
  }
  return bounded(sum);
}

}  // namespace

uint32_t page_seconds() {
  return uint32_t(std::chrono::ceil<std::chrono::seconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

std::chrono::seconds held_ahead(const TenantPage& page, uint32_t but, uint32_t now_s) {
  const uint32_t slots = std::min(page.slots.load(), kPageSlotsMax);
  uint32_t latest = now_s;
  for (uint32_t slot = 0; slot < slots; ++slot) {
    if (slot != but) latest = std::max(latest, page.slot[slot].ahead_until_s.load());
  }
  return std::min(std::chrono::seconds(latest - now_s), kAheadHeld);
}

uint64_t used_by_all(const TenantPage& page, uint32_t column) {
  return sum_of_slots(page, column, [](uint32_t, uint32_t) { return uint64_t{0}; });
}

uint64_t held_by_all(const TenantPage& page, uint32_t column) {
  return sum_of_slots(page, column, [&](uint32_t slot, uint32_t slots) {
    return slot < slots ? bounded(page.column[column].reserved[slot].load()) : 0;
  });
}

uint64_t held_by_all(const TenantPage& page, uint32_t column, const ReservedBytes& reserved) {
  return sum_of_slots(page, column, [&](uint32_t slot, uint32_t) { return bounded(reserved[slot]); });
}

// A reserving worker adds to its word and then reads the allowance; here the allowance is written and then the words
// are read. All of these are sequentially consistent, so either the sum below includes the worker's addition, or the
// worker sees the lower allowance and takes the addition back.
uint64_t lower_allowance(TenantPage& page, uint32_t column, uint64_t target, const ReservedBytes& reserved) {
  std::atomic<uint64_t>& allowance = page.column[column].allowance;
  uint64_t before = allowance.load();
  if (target >= before) return before;
  allowance.store(target);
  uint64_t held = held_by_all(page, column, reserved);
  if (held <= target) return target;
  held = std::min(held, before);
  allowance.store(held);
  return held;
}

void clear_slot(TenantPage& page, uint32_t slot) {
  for (PageColumn& column : page.column) {
    uint64_t left = std::min(bounded(column.shared[slot].load()), bounded(column.used[slot].load()));
    // The bytes are added to kLeftSlot first: so the sum is briefly too large and never too small.
    column.used[kLeftSlot].store(bounded(bounded(column.used[kLeftSlot].load()) + left));
    column.used[slot].store(0);
    column.reserved[slot].store(0);
    column.away[slot].store(0);
    column.shared[slot].store(0);
    column.peak[slot].store(0);
  }
  page.slot[slot].imports.store(0);
  page.slot[slot].keeps.store(0);
  page.slot[slot].ahead_until_s.store(0);
  page.slot[slot].client_pid.store(0);
  page.slot[slot].session.store(0);
  uint32_t its_turn = slot + 1;
  page.turn.compare_exchange_strong(its_turn, 0);
}

}  // namespace gpuwire::server
