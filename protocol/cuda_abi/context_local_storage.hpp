// The values that libraries attach to a context under a key of their own (the private table CONTEXT_LOCAL_STORAGE).
// Each copy of cudart looks up its value in every runtime call, so a lookup in the cache costs one atomic load and no
// lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <shared_mutex>
#include <utility>

#include <cuda.h>

namespace gpuwire::cuda_abi {

// Thread: any. A context is only a key here; no function of the driver is called with it.
class ContextLocalStorage {
 public:
  using Destructor = void (*)(CUcontext context, void* key, void* value);

  ContextLocalStorage();

  // Returns CUDA_ERROR_INVALID_HANDLE if the key exists, like the driver.
  CUresult put(CUcontext context, void* key, void* value, Destructor destructor);
  // Returns CUDA_ERROR_INVALID_HANDLE if the key is absent. Does not call the destructor.
  CUresult remove(CUcontext context, void* key);
  // Returns CUDA_ERROR_INVALID_HANDLE, and does not write *value, if the key is absent.
  CUresult get(CUcontext context, void* key, void** value) const;
  // Removes all values of a context and calls their destructors, without holding a lock. Called on reset and on
  // destruction of the context.
  void drop_context(CUcontext context);

 private:
  struct Entry {
    void* value;
    Destructor destructor;
  };
  using Key = std::pair<CUcontext, void*>;

  void invalidate_caches() noexcept;

  mutable std::shared_mutex mutex_;
  std::map<Key, Entry> entries_;
  // Changes with every change of entries_, under mutex_. Unique over all instances. Partner: the per-thread caches in
  // get(). Their rows store the generation that was read before the lookup, so a row can only be older than the
  // generation that it is compared with, never newer.
  std::atomic<uint64_t> generation_;
};

}  // namespace gpuwire::cuda_abi
