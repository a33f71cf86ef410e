// Stream-ordered memory: a pool is charged what it has reserved from the device, whatever the program has of it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "server/ledger/worker/session_ledger.hpp"

namespace gpuwire::server {

struct LedgerParts;

// A pool's share grows in calls that allocate, and is charged there before it grows. It shrinks when the driver finds
// time (at synchronisations, by trims): a thread looks every kPoolLookMs while there is something to shrink, and every
// allocation looks before it is refused.
class PoolCharges {
 public:
  explicit PoolCharges(LedgerParts& parts) : parts_(parts) {}
  ~PoolCharges();
  // Ends the thread that looks; what is freed later is seen by the next allocation only.
  void rest();

  // Makes `allocate`, a call that takes `bytes` from the pool for a stream, within the quota.
  template <class Allocate>
  CUresult allocate(CUmemoryPool native, uint64_t bytes, CUdeviceptr* address, CUstream stream, Allocate&& allocate) {
    Growth growth(*this, native, bytes, stream);
    if (!growth.possible()) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = allocate();
    return growth.settle(result, address);
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
  // After a call that found work done: what was freed in the order of its stream has gone back to the pools, and from
  // them perhaps to the device.
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
  // One allocation from a pool.
  class Growth {
   public:
    Growth(PoolCharges& charges, CUmemoryPool native, uint64_t bytes, CUstream stream);
    ~Growth();
    bool possible() const { return possible_; }
    CUresult settle(CUresult result, CUdeviceptr* address);

   private:
    bool reserve(uint64_t bytes);
    PoolCharges& charges_;
    const CUmemoryPool native_;
    const CUstream stream_;
    std::shared_ptr<Pool> pool_;
    std::unique_lock<std::mutex> lock_;
    uint64_t reserved_ = 0;  // beyond what the pool is charged
    bool possible_ = true;
  };

  std::shared_ptr<Pool> find(CUmemoryPool native);
  std::shared_ptr<Pool> find_if_known(CUmemoryPool native);
  uint32_t locate(CUmemoryPool native) const;
  uint64_t attribute(CUmemoryPool native, CUmemPool_attribute attribute) const;
  // With the pool's mutex: charges no more than the pool has now.
  void shrink(CUmemoryPool native, Pool& pool);
  void charge(Pool& pool, uint64_t bytes);
  void forget(CUmemoryPool native);
  void leave_devices(CUmemoryPool native);
  void settle_all();
  void look();
  bool anything_to_shrink();

  LedgerParts& parts_;
  std::mutex mutex_;  // over the map and the thread's state; never held while the driver is called
  std::unordered_map<CUmemoryPool, std::shared_ptr<Pool>> pools_;
  std::atomic<bool> unsettled_{
      false};  // a free was seen since the last settlement; a hint for the same calls, so relaxed
  std::condition_variable changed_;
  bool charged_ = false, freed_ = false,
       ending_ = false;  // something may shrink; something was freed since the last look
  std::thread looker_;   // started by the first free
};

}  // namespace gpuwire::server
