// Stream-ordered memory: a pool is charged its reservation from the device, regardless of the program's use of it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <unordered_map>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"
#include "server/ledger/worker/take.hpp"

namespace gpuwire::server {

struct LedgerParts;

// A pool grows in calls that allocate, which charge the growth in advance. It shrinks at times that the driver chooses
// (at synchronisations, by trims): a thread polls every kPoolPollMs while a pool may shrink, and every allocation
// checks before it is refused.
class PoolCharges {
 public:
  explicit PoolCharges(LedgerParts& parts);
  ~PoolCharges();
  // Ends the polling thread; from then on only allocations notice frees.
  void rest();

  // Makes `allocate`, a call that takes `bytes` from the pool for a stream, within the quota.
  template <class Allocate>
  CUresult allocate(CUmemoryPool native, uint64_t bytes, CUdeviceptr* address, CUstream stream, Allocate&& allocate) {
    auto pool = find(native);
    MutexLock lock(pool->mutex);
    if (pool->foreign) return allocate();
    shrink(native, *pool);
    bool called = false;
    auto within = [&](uint64_t most) REQUIRES(pool->mutex) {
      // take() calls these with the lock held.
      CUresult result = take(
          ledger_, pool->column, most, [&] { return called = true, allocate(); },
          [&]() WITHOUT_LOCK_CHECK { return grown(native, *pool); },
          [&](uint64_t more) WITHOUT_LOCK_CHECK { grew(*pool, more); }, [&] { take_back(native, *address, stream); });
      if (called && result != CUDA_SUCCESS) absorb(native, *pool);
      return result;
    };
    const uint64_t most = growth(bytes);
    CUresult result = within(most);
    if (called) return result;
    // The pool may have room; the growth is checked after the call.
    if (has_room(native, *pool, bytes)) return within(0);
    // The driver, too, would trim the pool before it fails.
    trim(native, *pool);
    return within(most);
  }

  // Records the column of a pool's memory, known from the call that returned the pool.
  void located(CUmemoryPool native, uint32_t column);
  // Records an imported pool, whose memory is charged to the session that made it.
  void imported(CUmemoryPool native);
  // Records that others may hold the pool's memory.
  void exported(CUmemoryPool native);
  // Destroys the pool, or leaves this to the polling thread until nothing is allocated from it: until then the driver
  // can be queried about its memory.
  CUresult destroy(CUmemoryPool native);
  void settle(CUmemoryPool native);
  // Notifies the polling thread that memory of a pool may have been freed.
  void memory_was_freed();
  // Called after a call that found work done: stream-ordered frees have returned memory to the pools, and pools may
  // have returned it to the device.
  CUresult synchronised(CUresult result) {
    if (result == CUDA_SUCCESS && unsettled_.load(std::memory_order_relaxed)) [[unlikely]]
      settle_all();
    return result;
  }

 private:
  struct Pool {
    // Held over a call that allocates, and its charge; taken before the ledger's.
    Mutex mutex;
    uint32_t column = 0;
    uint64_t charged GUARDED_BY(mutex) = 0;
    bool foreign GUARDED_BY(mutex) = false, left GUARDED_BY(mutex) = false, dying GUARDED_BY(mutex) = false;
  };
  std::shared_ptr<Pool> find(CUmemoryPool native);
  std::shared_ptr<Pool> find_if_known(CUmemoryPool native);
  uint32_t locate(CUmemoryPool native) const;
  uint64_t attribute(CUmemoryPool native, CUmemPool_attribute attribute) const;
  // Returns the largest growth of a pool for an allocation.
  uint64_t growth(uint64_t bytes) const;
  // grown() returns the memory beyond the charge; grew() adds to the charge; absorb() charges
  // the growth after a call, regardless of its result.
  uint64_t grown(CUmemoryPool native, const Pool& pool) const REQUIRES(pool.mutex);
  void grew(Pool& pool, uint64_t bytes) REQUIRES(pool.mutex);
  void absorb(CUmemoryPool native, Pool& pool) REQUIRES(pool.mutex);
  bool has_room(CUmemoryPool native, const Pool& pool, uint64_t bytes) const REQUIRES(pool.mutex);
  void trim(CUmemoryPool native, Pool& pool) REQUIRES(pool.mutex);
  void take_back(CUmemoryPool native, CUdeviceptr address, CUstream stream) const;
  // Lowers the charge to the pool's present memory.
  void shrink(CUmemoryPool native, Pool& pool) REQUIRES(pool.mutex);
  void charge(Pool& pool, uint64_t bytes) REQUIRES(pool.mutex);
  void forget(CUmemoryPool native);
  void leave_devices(CUmemoryPool native);
  void settle_all();
  void poll();
  bool anything_to_shrink();

  LedgerParts& parts_;
  SessionLedger& ledger_;
  // Never held during a driver call.
  Mutex mutex_;
  std::unordered_map<CUmemoryPool, std::shared_ptr<Pool>> pools_ GUARDED_BY(mutex_);
  // A free was seen since the last settlement; a hint for the same calls, so relaxed.
  std::atomic<bool> unsettled_{false};
  Condition changed_;
  bool charged_ GUARDED_BY(mutex_) = false, freed_ GUARDED_BY(mutex_) = false,
                // Something may shrink; something was freed since the last look.
      ending_ GUARDED_BY(mutex_) = false;
  // Started by the first free.
  std::thread poller_;
};

}  // namespace gpuwire::server
