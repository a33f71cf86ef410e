#include "server/ledger/worker/session_ledger.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include <sched.h>

namespace gpuwire::server {
namespace {

// Workers of a tenant reserve one after the other, so that two concurrent reservations do not both fail. Nothing else
// depends on the turn: a worker that has waited for kTurnWaitUs continues without it. The broker ends the turn of a
// worker that has died.
class Turn {
 public:
  Turn(TenantPage& page, uint32_t slot) : turn_(page.turn), mine_(slot + 1) {
    constexpr unsigned kPolls = 64;
    for (unsigned poll = 0; poll < kPolls; ++poll) {
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

thread_local std::optional<SessionLedger::Grant> t_ahead;

uint64_t allowed(const PageColumn& column) {
  return std::min(bounded(column.allowance.load()), bounded(column.limit.load()));
}

}  // namespace

SessionLedger::SessionLedger(TenantPage& page, uint32_t slot, AllowanceSource* source,
                             std::chrono::milliseconds kept_wait)
    : page_(page), slot_(slot), source_(source), kept_wait_(kept_wait) {
  for (uint32_t column = 0; column < kPageColumns; ++column)
    reserved_[column] = bounded(page_.column[column].reserved[slot_].load());
}

uint64_t SessionLedger::growth(uint32_t column, uint64_t bytes) const {
  const uint64_t used = bounded(page_.column[column].used[slot_].load());
  return used + bytes - std::min(used + bytes, std::max(used, reserved_[column]));
}

void SessionLedger::note_peak(PageColumn& column) const {
  // Relaxed: only statistics use the peak. The mutex keeps it from decreasing.
  column.peak[slot_].store(
      std::max(column.peak[slot_].load(std::memory_order_relaxed), bounded(column.used[slot_].load())),
      std::memory_order_relaxed);
}

uint64_t SessionLedger::user_limit(uint32_t column) const {
  if (!users_ || user_ == 0 || column == kHostColumn) return kPageBytesMax;
  const uint64_t limit = bounded(users_->limit[slot_].load());
  return limit ? limit : kPageBytesMax;
}

uint64_t SessionLedger::left_of_user(uint32_t column) const {
  const uint64_t limit = user_limit(column);
  if (limit == kPageBytesMax) return kPageBytesMax;
  return limit - std::min(limit, held_by_user(page_, *users_, column, user_));
}

bool SessionLedger::user_within_limit(uint32_t column) const {
  const uint64_t limit = user_limit(column);
  return limit == kPageBytesMax || held_by_user(page_, *users_, column, user_) <= limit;
}

bool SessionLedger::try_reserve(uint32_t column, uint64_t bytes) {
  PageColumn& of = page_.column[column];
  MutexLock lock(mutex_);
  // Within the reservation only this session's used word changes, and not the held memory; other threads of the session
  // can only lower the word.
  if (growth(column, bytes) == 0) {
    of.used[slot_].fetch_add(bytes);
    note_peak(of);
    return true;
  }
  const Turn turn(page_, slot_);
  const uint64_t more = growth(column, bytes), held = held_by_all(page_, column), allowance = allowed(of);
  if (held > allowance || more > allowance - held || more > left_of_user(column)) return false;
  // The word is written first, and the sum is checked afterwards: see lower_allowance(). This also covers workers that
  // did not wait for their turn.
  of.used[slot_].fetch_add(bytes);
  if (held_by_all(page_, column) <= allowed(of) && user_within_limit(column)) {
    note_peak(of);
    return true;
  }
  of.used[slot_].fetch_sub(bytes);
  return false;
}

bool SessionLedger::others_keep(uint32_t column, bool of_user) const {
  if (column == kHostColumn || page_.slot[slot_].keeps.load() != 0) return false;
  const uint32_t slots = std::min(page_.slots.load(), kPageSlotsMax);
  for (uint32_t other = 0; other < slots; ++other) {
    if (of_user && users_->user[other].load() != user_) continue;
    if (page_.slot[other].keeps.load() != 0 && page_.column[column].used[other].load() != 0) return true;
  }
  return false;
}

SessionLedger::Ahead::Ahead(Grant grant) noexcept { t_ahead = grant; }
SessionLedger::Ahead::~Ahead() { t_ahead.reset(); }

bool SessionLedger::leaves_enough(uint32_t column, uint64_t bytes) const {
  const uint64_t more = growth(column, bytes), limit = tenant_limit(column), of_user = user_limit(column);
  if (more == 0) return true;
  if (of_user != kPageBytesMax && left_of_user(column) < more + of_user / kGrantLeaves) return false;
  return held_by_all(page_, column) + more <= limit - limit / kGrantLeaves;
}

bool SessionLedger::reserve_ahead(uint32_t column, uint64_t bytes) {
  if (!leaves_enough(column, bytes)) return false;
  if (try_reserve(column, bytes)) return true;
  return t_ahead == Grant::may_grow && source_ && source_->ask_ahead(column, growth(column, bytes)) &&
         try_reserve(column, bytes);
}

bool SessionLedger::reserve(uint32_t column, uint64_t bytes) {
  using Clock = std::chrono::steady_clock;
  if (bytes == 0) return true;
  if (column >= kPageColumns || bytes >= kPageBytesMax) return false;
  if (t_ahead) return reserve_ahead(column, bytes);
  std::optional<Clock::time_point> until;  // the deadline of the wait for memory that other sessions' clients cache
  for (unsigned asked = 0;;) {
    if (try_reserve(column, bytes)) return true;
    const uint64_t limit = tenant_limit(column), more = growth(column, bytes);
    if (more > limit || more > user_limit(column)) return false;
    const bool beyond_tenant = held_by_all(page_, column) > limit - more;
    if (beyond_tenant || more > left_of_user(column)) {
      if (!until)
        until = Clock::now() + std::max<Clock::duration>(kept_wait_, held_ahead(page_, slot_, page_seconds()));
      if (others_keep(column, !beyond_tenant) && Clock::now() < *until) {
        std::this_thread::sleep_for(kCachedMemoryPoll);
        continue;
      }
      // The broker may be withdrawing a reservation for the user, so the worker asks it before refusing.
      if (beyond_tenant) return false;
    }
    if (!source_ || asked++ == kAllowanceAsksMax) return false;
    // The broker refused, but another session may have released memory meanwhile.
    if (!source_->ask(column, more)) return try_reserve(column, bytes);
  }
}

void SessionLedger::give_back(uint32_t column, uint64_t bytes) {
  if (bytes == 0 || column >= kPageColumns) return;
  std::atomic<uint64_t>& used = page_.column[column].used[slot_];
  uint64_t had = used.load();
  while (!used.compare_exchange_weak(had, had - std::min(had, bytes))) {}
}

uint64_t SessionLedger::available(uint32_t column) const {
  const PageColumn& of = page_.column[column];
  const uint64_t reach =
      std::min(bounded(of.limit.load()), std::max(bounded(of.allowance.load()), bounded(of.reach.load())));
  const uint64_t used = bounded(of.used[slot_].load()), held = held_by_all(page_, column);
  return reserved_[column] - std::min(reserved_[column], used) +
         std::min(reach - std::min(reach, held), left_of_user(column));
}

}  // namespace gpuwire::server
