// One session's hold on its tenant's page: reserves before the driver is called, gives back when the driver has.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "server/ledger/page/tenant_page.hpp"
#include "server/ledger/page/user_page.hpp"

namespace gpuwire::server {

// The raiser of allowances: the broker, over the worker's channel.
class AllowanceSource {
 public:
  virtual ~AllowanceSource() = default;
  // `bytes` more are wanted than the tenant's sessions hold. True: the allowance has been raised. Waits a bounded time.
  // Any thread.
  virtual bool ask(uint32_t column, uint64_t bytes) = 0;
  // The same for prefetched memory: memory that others have, or would have to end for, is neither wanted nor waited
  // for.
  virtual bool ask_ahead(uint32_t column, uint64_t bytes) = 0;
};

inline constexpr unsigned kAllowanceAsksMax = 8;  // other sessions of the tenant may take the raised memory first
inline constexpr uint32_t kTurnWaitUs = 2000;     // for another worker's turn to end; then it is not waited for
// At the tenant's limit, while clients of its other sessions may have cached blocks. They release unused blocks after
// kCachedTime (client_stub/driver/memory/cached_memory.hpp), so mostly within this time; blocks of earlier runs are
// released within kAheadHeld.
inline constexpr std::chrono::milliseconds kCachedMemoryWait{400}, kCachedMemoryPoll{5};

// Prefetched memory leaves this part of a tenant's limit free.
inline constexpr uint64_t kGrantLeaves = 8;  // an eighth

// Any thread.
class SessionLedger {
 public:
  // `source` may be null: then the allowance is all there is. It and the page outlive the ledger. `kept_wait`: how long
  // memory is waited for that clients of other sessions keep.
  SessionLedger(TenantPage& page, uint32_t slot, AllowanceSource* source,
                std::chrono::milliseconds kept_wait = kCachedMemoryWait);
  SessionLedger(const SessionLedger&) = delete;
  SessionLedger& operator=(const SessionLedger&) = delete;

  // The session is one of this user's (user_key()), whose bound holds for it, too. Before the first reservation; the
  // page outlives the ledger.
  void set_user(const UserPage& users, uint64_t user) {
    users_ = &users;
    user_ = user;
  }

  // While an object exists on a thread, the thread reserves from the session's reservation, or from the tenant's
  // existing grant, as long as a part of the tenant's limit (kGrantLeaves) stays free for its later requests: no wait
  // happens. The broker is not asked either, unless the grant may grow: a starting program has no grant beyond its
  // context, and the broker grants free memory at once, or none (ask_ahead). Unused memory then goes back like any
  // allowance.
  enum class Grant : uint8_t { as_it_is, may_grow };
  struct Ahead {
    explicit Ahead(Grant grant) noexcept;
    ~Ahead();
    Ahead(const Ahead&) = delete;
    Ahead& operator=(const Ahead&) = delete;
  };

  // From the session's reservation first. False: it would exceed the tenant's limit or the user's, or the memory
  // belongs to others.
  bool reserve(uint32_t column, uint64_t bytes);
  void give_back(uint32_t column, uint64_t bytes);
  // This much of the held memory may outlive the session in the hands of others. It stays charged when it is released
  // here.
  void share(uint32_t column, uint64_t bytes) { page_.column[column].shared[slot_].fetch_add(bytes); }
  void note_import() { page_.slot[slot_].imports.store(1); }
  // The client may keep memory that its program has freed, or does no more.
  void note_keeping(bool keeps) { page_.slot[slot_].keeps.store(keeps); }
  // Memory that the client may hold for kAheadHeld has just been allocated ahead of its program.
  void note_held_ahead() { page_.slot[slot_].ahead_until_s.store(page_seconds() + uint32_t(kAheadHeld.count())); }

  uint64_t used(uint32_t column) const { return page_.column[column].used[slot_].load(); }
  // The memory that the session could have now beyond its used memory: the rest of its reservation, and memory that
  // nobody holds.
  uint64_t available(uint32_t column) const;
  uint64_t used_by_tenant(uint32_t column) const { return used_by_all(page_, column); }
  // The tenant's or the user's, whichever is less.
  uint64_t limit(uint32_t column) const { return std::min(tenant_limit(column), user_limit(column)); }
  uint64_t context_bytes(uint32_t column) const { return bounded(page_.column[column].context_bytes.load()); }

 private:
  uint64_t tenant_limit(uint32_t column) const { return bounded(page_.column[column].limit.load()); }
  // kPageBytesMax: none.
  uint64_t user_limit(uint32_t column) const;
  // What the user may have beyond what the user's sessions hold.
  uint64_t left_of_user(uint32_t column) const;
  // Do the user's sessions hold no more than the user may have?
  bool user_within_limit(uint32_t column) const;
  bool try_reserve(uint32_t column, uint64_t bytes);
  bool reserve_ahead(uint32_t column, uint64_t bytes);
  bool leaves_enough(uint32_t column, uint64_t bytes) const;
  // The growth of the session's held memory by `bytes` more.
  uint64_t growth(uint32_t column, uint64_t bytes) const;
  void note_peak(PageColumn& column) const;
  // May clients of other sessions of the tenant give such memory back by themselves? Not while the own client may: it
  // gives back first, and asks again.
  // `of_user`: only the own user's count.
  bool others_keep(uint32_t column, bool of_user) const;

  TenantPage& page_;
  const UserPage* users_ = nullptr;
  uint64_t user_ = 0;
  const uint32_t slot_;
  AllowanceSource* const source_;
  // A copy: later writes of other workers to the page give this session nothing.
  std::array<uint64_t, kPageColumns> reserved_{};
  const std::chrono::milliseconds kept_wait_;
  std::mutex mutex_;  // one thread of the process takes the turn
};

}  // namespace gpuwire::server
