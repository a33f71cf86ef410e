#include "server/ledger/worker/session_ledger.hpp"

#include <algorithm>
#include <chrono>

#include <sched.h>

namespace gpuwire::server {
namespace {

// Workers of a tenant reserve one after the other, so that two of them do not both give way to each other. Nothing but
// that depends on it: who has waited for long goes without. The broker ends the turn of a worker that has died.
class Turn {
 public:
  Turn(TenantPage& page, uint32_t slot) : turn_(page.turn), mine_(slot + 1) {
    constexpr unsigned kLooks = 64;
    for (unsigned look = 0; look < kLooks; ++look) {
      if (take()) return;
    }
    auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(kTurnWaitUs);
    while (!take() && std::chrono::steady_clock::now() < until) ::sched_yield();
  }
  ~Turn() {
    if (taken_) turn_.store(0, std::memory_order_release);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  bool take() {
    uint32_t nobody = 0;
    return taken_ = turn_.compare_exchange_strong(nobody, mine_, std::memory_order_acquire, std::memory_order_relaxed);
  }

  std::atomic<uint32_t>& turn_;
  const uint32_t mine_;
  bool taken_ = false;
};

uint64_t allowed(const PageColumn& column) {
  return std::min(bounded(column.allowance.load()), bounded(column.limit.load()));
}

}  // namespace

bool SessionLedger::try_reserve(uint32_t column, uint64_t bytes) {
  PageColumn& of = page_.column[column];
  std::lock_guard lock(mutex_);
  const Turn turn(page_, slot_);
  uint64_t used = used_by_all(page_, column), allowance = allowed(of);
  if (used > allowance || bytes > allowance - used) return false;
  // Said first, looked at again then: see lower_allowance(). The words of workers that did not wait for their turn are
  // seen in the same way.
  of.used[slot_].fetch_add(bytes);
  if (used_by_all(page_, column) <= allowed(of)) {
    // Only figures are made of it: relaxed. Under the mutex, so that it never falls.
    of.peak[slot_].store(std::max(of.peak[slot_].load(std::memory_order_relaxed), of.used[slot_].load()),
                         std::memory_order_relaxed);
    return true;
  }
  of.used[slot_].fetch_sub(bytes);
  return false;
}

bool SessionLedger::reserve(uint32_t column, uint64_t bytes) {
  if (bytes == 0) return true;
  if (column >= kPageColumns || bytes >= kPageBytesMax) return false;
  for (unsigned asked = 0;; ++asked) {
    if (try_reserve(column, bytes)) return true;
    uint64_t limit = this->limit(column);
    if (bytes > limit || used_by_all(page_, column) > limit - bytes) return false;
    if (!source_ || asked == kAllowanceAsksMax) return false;
    // Refused, but somebody may have given back meanwhile.
    if (!source_->ask(column, bytes)) return try_reserve(column, bytes);
  }
}

void SessionLedger::give_back(uint32_t column, uint64_t bytes) {
  if (bytes == 0 || column >= kPageColumns) return;
  std::atomic<uint64_t>& used = page_.column[column].used[slot_];
  uint64_t had = used.load();
  while (!used.compare_exchange_weak(had, had - std::min(had, bytes))) {}
}

uint64_t SessionLedger::reach(uint32_t column) const {
  const PageColumn& of = page_.column[column];
  return std::min(bounded(of.limit.load()), std::max(bounded(of.allowance.load()), bounded(of.reach.load())));
}

}  // namespace gpuwire::server
