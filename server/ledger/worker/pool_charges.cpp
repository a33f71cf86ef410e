#include "server/ledger/worker/pool_charges.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "server/ledger/worker/charges.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kPoolUnitBytes = 32u << 20;  // a pool grows by multiples of this
constexpr std::chrono::milliseconds kPoolPollMs{20};
constexpr std::chrono::milliseconds kPoolPollSlowMs{250};  // after kPoolPolls polls without a free
constexpr unsigned kPoolPolls = 10;

}  // namespace

PoolCharges::PoolCharges(LedgerParts& parts) : parts_(parts), ledger_(parts.ledger) {}

PoolCharges::~PoolCharges() { rest(); }

void PoolCharges::rest() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (poller_.joinable()) poller_.join();
}

uint64_t PoolCharges::attribute(CUmemoryPool native, CUmemPool_attribute attribute) const {
  cuuint64_t bytes = 0;
  return parts_.driver.cuMemPoolGetAttribute(native, attribute, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

// Returns the column of a pool that the program did not make: it is some device's default pool.
uint32_t PoolCharges::locate(CUmemoryPool native) const {
  for (size_t device = 0; device < parts_.columns.size(); ++device) {
    CUmemoryPool candidate = nullptr;
    if (parts_.driver.cuDeviceGetDefaultMemPool &&
        parts_.driver.cuDeviceGetDefaultMemPool(&candidate, CUdevice(device)) == CUDA_SUCCESS && candidate == native)
      return parts_.columns[device];
  }
  Place place;
  return parts_.here(place) == CUDA_SUCCESS ? place.column : kHostColumn;
}

std::shared_ptr<PoolCharges::Pool> PoolCharges::find_if_known(CUmemoryPool native) {
  MutexLock lock(mutex_);
  auto found = pools_.find(native);
  return found == pools_.end() ? nullptr : found->second;
}

std::shared_ptr<PoolCharges::Pool> PoolCharges::find(CUmemoryPool native) {
  if (auto pool = find_if_known(native)) return pool;
  uint32_t column = locate(native);
  MutexLock lock(mutex_);
  auto& pool = pools_[native];
  if (!pool) {
    pool = std::make_shared<Pool>();
    pool->column = column;
  }
  return pool;
}

void PoolCharges::located(CUmemoryPool native, uint32_t column) {
  MutexLock lock(mutex_);
  auto& pool = pools_[native];
  if (pool) return;
  pool = std::make_shared<Pool>();
  pool->column = column;
}

void PoolCharges::imported(CUmemoryPool native) {
  parts_.ledger.note_import();
  auto pool = find(native);
  MutexLock lock(pool->mutex);
  pool->foreign = true;
}

void PoolCharges::exported(CUmemoryPool native) {
  auto pool = find(native);
  MutexLock lock(pool->mutex);
  if (std::exchange(pool->left, true)) return;
  parts_.ledger.share(pool->column, pool->charged);
}

void PoolCharges::forget(CUmemoryPool native) {
  MutexLock lock(mutex_);
  pools_.erase(native);
}

// Resets devices with this current pool to their default pool, before the pool is destroyed.
void PoolCharges::leave_devices(CUmemoryPool native) {
  const DriverTable& driver = parts_.driver;
  if (!driver.cuDeviceGetMemPool || !driver.cuDeviceSetMemPool || !driver.cuDeviceGetDefaultMemPool) return;
  for (CUdevice device = 0; size_t(device) < parts_.columns.size(); ++device) {
    CUmemoryPool current = nullptr, standard = nullptr;
    if (driver.cuDeviceGetMemPool(&current, device) != CUDA_SUCCESS || current != native) continue;
    if (driver.cuDeviceGetDefaultMemPool(&standard, device) == CUDA_SUCCESS)
      driver.cuDeviceSetMemPool(device, standard);
  }
}

CUresult PoolCharges::destroy(CUmemoryPool native) {
  auto pool = find_if_known(native);
  if (!pool) return parts_.driver.cuMemPoolDestroy(native);
  MutexLock lock(pool->mutex);
  if (!pool->foreign && attribute(native, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) != 0) {
    leave_devices(native);
    pool->dying = true;
    lock.unlock();
    memory_was_freed();
    return CUDA_SUCCESS;
  }
  CUresult result = parts_.driver.cuMemPoolDestroy(native);
  if (result != CUDA_SUCCESS) return result;
  charge(*pool, 0);
  lock.unlock();
  forget(native);
  return result;
}

// Lowers the charge; growth was reserved in advance.
void PoolCharges::charge(Pool& pool, uint64_t bytes) {
  if (bytes >= pool.charged) return;
  if (!pool.left) parts_.ledger.give_back(pool.column, pool.charged - bytes);
  pool.charged = bytes;
}

void PoolCharges::shrink(CUmemoryPool native, Pool& pool) {
  if (pool.foreign || pool.left || pool.charged == 0) return;
  charge(pool, attribute(native, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
}

void PoolCharges::settle(CUmemoryPool native) {
  auto pool = find_if_known(native);
  if (!pool) return;
  MutexLock lock(pool->mutex);
  shrink(native, *pool);
}

// --- growing -------------------------------------------------------------------------------------------------------

uint64_t PoolCharges::growth(uint64_t bytes) const { return parts_.software ? bytes : round_up(bytes, kPoolUnitBytes); }

uint64_t PoolCharges::grown(CUmemoryPool native, const Pool& pool) const {
  const uint64_t has = attribute(native, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  return has - std::min(has, pool.charged);
}

void PoolCharges::grew(Pool& pool, uint64_t bytes) {
  pool.charged += bytes;
  if (pool.left) ledger_.share(pool.column, bytes);
}

void PoolCharges::absorb(CUmemoryPool native, Pool& pool) {
  // take() calls these with the lock held.
  take(
      ledger_, pool.column, 0, [] { return CUDA_SUCCESS; }, [&]() WITHOUT_LOCK_CHECK { return grown(native, pool); },
      [&](uint64_t more) WITHOUT_LOCK_CHECK { grew(pool, more); }, [] {});
}

bool PoolCharges::has_room(CUmemoryPool native, const Pool& pool, uint64_t bytes) const {
  const uint64_t used = attribute(native, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  return pool.charged > used && pool.charged - used >= bytes;
}

void PoolCharges::trim(CUmemoryPool native, Pool& pool) {
  if (parts_.driver.cuMemPoolTrimTo) parts_.driver.cuMemPoolTrimTo(native, 0);
  shrink(native, pool);
}

// Undoes an allocation, and the growth of a pool that grew although it had room.
void PoolCharges::take_back(CUmemoryPool native, CUdeviceptr address, CUstream stream) const {
  parts_.driver.cuMemFreeAsync(address, stream);
  parts_.driver.cuStreamSynchronize(stream);
  parts_.driver.cuMemPoolTrimTo(native, 0);
}

// --- shrinking -----------------------------------------------------------------------------------------------------

void PoolCharges::settle_all() {
  unsettled_.store(false, std::memory_order_relaxed);
  anything_to_shrink();
}

void PoolCharges::memory_was_freed() {
  unsettled_.store(true, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  if (pools_.empty() || (charged_ && freed_)) return;
  charged_ = freed_ = true;
  if (!poller_.joinable() && !ending_) poller_ = std::thread([this] { poll(); });
  changed_.notify_all();
}

// Whether a pool may shrink. A free takes effect when its stream reaches it, which may be much later, so every pool
// with memory may shrink.
bool PoolCharges::anything_to_shrink() {
  std::vector<std::pair<CUmemoryPool, std::shared_ptr<Pool>>> all;
  {
    MutexLock lock(mutex_);
    all.assign(pools_.begin(), pools_.end());
  }
  bool more = false;
  for (auto& [native, pool] : all) {
    MutexLock lock(pool->mutex);
    shrink(native, *pool);
    more |= pool->charged != 0;
    if (!pool->dying || attribute(native, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) != 0) continue;
    if (parts_.driver.cuMemPoolDestroy(native) == CUDA_SUCCESS) charge(*pool, 0);
    forget(native);
  }
  return more;
}

void PoolCharges::poll() {
  MutexLock lock(mutex_);
  for (unsigned quiet = 0;;) {
    changed_.wait(lock.native(), [&]() REQUIRES(mutex_) { return charged_ || ending_; });
    changed_.wait_for(lock.native(), quiet < kPoolPolls ? kPoolPollMs : kPoolPollSlowMs,
                      [&]() REQUIRES(mutex_) { return ending_; });
    if (ending_) return;
    quiet = std::exchange(freed_, false) ? 0 : quiet + 1;
    lock.unlock();
    bool more = anything_to_shrink();
    lock.lock();
    charged_ = more || freed_;
  }
}

}  // namespace gpuwire::server
