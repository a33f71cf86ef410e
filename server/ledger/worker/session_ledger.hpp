// A session's side of its tenant's page: reserves memory before a driver call takes it, and releases it after the
// driver has freed it.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

#include "protocol/threads/mutex.hpp"
#include "server/ledger/page/tenant_page.hpp"
#include "server/ledger/page/user_page.hpp"

namespace gpuwire::server {

// Raises allowances; implemented by requests to the broker over the worker's channel.
class AllowanceSource {
 public:
  virtual ~AllowanceSource() = default;
  // Requests an allowance of `bytes` more than the tenant's sessions hold. True: the allowance has been raised. Waits a
  // bounded time. Any thread.
  virtual bool ask(uint32_t column, uint64_t bytes) = 0;
  // ask() for prefetched memory, which only free memory satisfies: no other tenant or prewarmed worker has to release
  // any, and there is no wait.
  virtual bool ask_ahead(uint32_t column, uint64_t bytes) = 0;
};

inline constexpr unsigned kAllowanceAsksMax = 8;  // other sessions of the tenant may take the raised memory first
inline constexpr uint32_t kTurnWaitUs = 2000;     // the longest wait for another worker's turn
// The wait at the tenant's limit while clients of its other sessions may have cached blocks. Clients release unused
// blocks after kCachedTime (client_stub/driver/state/memory/cached_memory.hpp), so mostly within this wait, and
// prefetched blocks within kAheadHeld.
inline constexpr std::chrono::milliseconds kCachedMemoryWait{400}, kCachedMemoryPoll{5};

// Prefetched memory leaves the tenant's limit divided by this number free.
inline constexpr uint64_t kGrantLeaves = 8;  // an eighth

// Any thread.
class SessionLedger {
 public:
  // `source`: raises the allowance; null: the allowance is fixed. `source` and `page` outlive the ledger. `kept_wait`:
  // the longest wait for memory that clients of other sessions cache.
  SessionLedger(TenantPage& page, uint32_t slot, AllowanceSource* source,
                std::chrono::milliseconds kept_wait = kCachedMemoryWait);
  SessionLedger(const SessionLedger&) = delete;
  SessionLedger& operator=(const SessionLedger&) = delete;

  // Sets the session's user (user_key()), whose limit then applies, too. Precondition: no reservation has been made.
  // `users` outlives the ledger.
  void set_user(const UserPage& users, uint64_t user) {
    users_ = &users;
    user_ = user;
  }

  // While an object exists on a thread, the thread reserves from the session's reservation, or from the tenant's
  // existing grant, as long as a part of the tenant's limit (kGrantLeaves) stays free for its later requests: no wait
  // happens. No request is sent to the broker either, unless the grant may grow: a starting program has no grant beyond
  // its context, and the broker grants free memory at once, or none (ask_ahead). Unused memory is taken back like any
  // allowance.
  enum class Grant : uint8_t { as_it_is, may_grow };
  struct Ahead {
    explicit Ahead(Grant grant) noexcept;
    ~Ahead();
    Ahead(const Ahead&) = delete;
    Ahead& operator=(const Ahead&) = delete;
  };

  // Reserves `bytes`, first from the session's reservation. False: the tenant's or the user's limit would be exceeded,
  // or other tenants have the memory.
  bool reserve(uint32_t column, uint64_t bytes);
  void give_back(uint32_t column, uint64_t bytes);
  // Records that others may hold this much of the memory beyond the session's end. It stays charged when the session
  // frees it.
  void share(uint32_t column, uint64_t bytes) { page_.column[column].shared[slot_].fetch_add(bytes); }
  void note_import() { page_.slot[slot_].imports.store(1); }
  // Records whether the client may cache memory that its program has freed.
  void note_keeping(bool keeps) { page_.slot[slot_].keeps.store(keeps); }
  // Records that memory was prefetched now, which the client may hold for kAheadHeld.
  void note_held_ahead() { page_.slot[slot_].ahead_until_s.store(page_seconds() + uint32_t(kAheadHeld.count())); }

  uint64_t used(uint32_t column) const { return page_.column[column].used[slot_].load(); }
  // Returns the memory that the session could get now beyond its used memory: the rest of its reservation, and free
  // memory.
  uint64_t available(uint32_t column) const;
  uint64_t used_by_tenant(uint32_t column) const { return used_by_all(page_, column); }
  // The tenant's or the user's limit, whichever is lower.
  uint64_t limit(uint32_t column) const { return std::min(tenant_limit(column), user_limit(column)); }
  uint64_t context_bytes(uint32_t column) const { return bounded(page_.column[column].context_bytes.load()); }

 private:
  uint64_t tenant_limit(uint32_t column) const { return bounded(page_.column[column].limit.load()); }
  // Returns kPageBytesMax if there is no limit.
  uint64_t user_limit(uint32_t column) const;
  // Returns the user's limit minus the held memory of the user's sessions.
  uint64_t left_of_user(uint32_t column) const;
  // Whether the held memory of the user's sessions is within the user's limit.
  bool user_within_limit(uint32_t column) const;
  bool try_reserve(uint32_t column, uint64_t bytes);
  bool reserve_ahead(uint32_t column, uint64_t bytes);
  bool leaves_enough(uint32_t column, uint64_t bytes) const;
  // Returns the growth of the session's held memory if `bytes` more are used.
  uint64_t growth(uint32_t column, uint64_t bytes) const;
  void note_peak(PageColumn& column) const;
  // Whether clients of the tenant's other sessions may release cached memory soon. False while this session's own
  // client may: that client releases its memory first and tries again. `of_user`: only sessions of the same user count.
  bool others_keep(uint32_t column, bool of_user) const;

  TenantPage& page_;
  const UserPage* users_ = nullptr;
  uint64_t user_ = 0;
  const uint32_t slot_;
  AllowanceSource* const source_;
  // A copy of the session's reservation, so that later writes of other workers to the page cannot raise it.
  std::array<uint64_t, kPageColumns> reserved_{};
  const std::chrono::milliseconds kept_wait_;
  // One thread of the process takes the turn.
  Mutex mutex_;
};

}  // namespace gpuwire::server
