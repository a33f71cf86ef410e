// Stream-ordered memory: a pool is charged its reservation from the device, regardless of the program's use of it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "server/ledger/worker/take.hpp"

namespace gpuwire::server {

struct LedgerParts;

// A pool's share grows in calls that allocate, and is charged there before it grows. It shrinks when the driver finds
// time (at synchronisations, by trims): a thread looks every kPoolPollMs while there is something to shrink, and every
// allocation looks before it is refused.
class PoolCharges {
 public:
  explicit PoolCharges(LedgerParts& parts);
  ~PoolCharges();
  // Ends the polling thread; only the next allocation sees later frees.
  void rest();

  // Makes `allocate`, a call that takes `bytes` from the pool for a stream, within the quota.
  template <class Allocate>
  CUresult allocate(CUmemoryPool native, uint64_t bytes, CUdeviceptr* address, CUstream stream, Allocate&& allocate) {
    auto pool = find(native);
    std::lock_guard lock(pool->mutex);
    if (pool->foreign) return allocate();
    shrink(native, *pool);
    bool called = false;
    auto within = [&](uint64_t most) {
      CUresult result = take(
          ledger_, pool->column, most, [&] { return called = true, allocate(); }, [&] { return grown(native, *pool); },
          [&](uint64_t more) { grew(*pool, more); }, [&] { take_back(native, *address, stream); });
      if (called && result != CUDA_SUCCESS) absorb(native, *pool);
      return result;
    };
    const uint64_t most = growth(bytes);
    CUresult result = within(most);
    if (called) return result;
    // It may have room; whether it used that is seen afterwards.
    if (has_room(native, *pool, bytes)) return within(0);
    // The driver would release its kept memory before it fails, too.
    trim(native, *pool);
    return within(most);
  }

  // Where the pool's memory is, when that is known from the call that gave it.
  void located(CUmemoryPool native, uint32_t column);
  // Its memory is charged to the session that made it.
  void imported(CUmemoryPool native);
  // Others may hold on to its memory.
  void exported(CUmemoryPool native);
  // Destroys it, or lets the looking thread do so when nothing is allocated from it any more: until then it can be
  // asked how much that is.
  CUresult destroy(CUmemoryPool native);
  void settle(CUmemoryPool native);
  // Some memory of some pool may have been freed.
  void memory_was_freed();
  // After a call that found work done: memory that was freed in the order of its stream has returned to the pools, and
  // from them perhaps to the device.
  CUresult synchronised(CUresult result) {
    if (result == CUDA_SUCCESS && unsettled_.load(std::memory_order_relaxed)) [[unlikely]]
      settle_all();
    return result;
  }

 private:
  struct Pool {
    std::mutex mutex;  // over a call that allocates, and its charge; outside of the ledger's
    uint32_t column = 0;
    uint64_t charged = 0;
    bool foreign = false, left = false, dying = false;
  };
  std::shared_ptr<Pool> find(CUmemoryPool native);
  std::shared_ptr<Pool> find_if_known(CUmemoryPool native);
  uint32_t locate(CUmemoryPool native) const;
  uint64_t attribute(CUmemoryPool native, CUmemPool_attribute attribute) const;
  // By how much a pool may grow for an allocation.
  uint64_t growth(uint64_t bytes) const;
  // With the pool's mutex. The first: the memory beyond the charge. The second: charges it from now on. The third: the
  // memory after a call, whatever its result.
  uint64_t grown(CUmemoryPool native, const Pool& pool) const;
  void grew(Pool& pool, uint64_t bytes);
  void absorb(CUmemoryPool native, Pool& pool);
  bool has_room(CUmemoryPool native, const Pool& pool, uint64_t bytes) const;
  void trim(CUmemoryPool native, Pool& pool);
  void take_back(CUmemoryPool native, CUdeviceptr address, CUstream stream) const;
  // Charges no more than the pool has now.
  void shrink(CUmemoryPool native, Pool& pool);
  void charge(Pool& pool, uint64_t bytes);
  void forget(CUmemoryPool native);
  void leave_devices(CUmemoryPool native);
  void settle_all();
  void poll();
  bool anything_to_shrink();

  LedgerParts& parts_;
  SessionLedger& ledger_;
  std::mutex mutex_;  // over the map and the thread's state; never held while the driver is called
  std::unordered_map<CUmemoryPool, std::shared_ptr<Pool>> pools_;
  std::atomic<bool> unsettled_{
      false};  // a free was seen since the last settlement; a hint for the same calls, so relaxed
  std::condition_variable changed_;
  bool charged_ = false, freed_ = false,
       ending_ = false;  // something may shrink; something was freed since the last look
  std::thread poller_;   // started by the first free
};

}  // namespace gpuwire::server
