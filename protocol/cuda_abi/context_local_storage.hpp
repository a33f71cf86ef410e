// Values that libraries hang onto a context under a key of theirs (the private table CONTEXT_LOCAL_STORAGE). Each copy
// of cudart looks its own up in every runtime call, so a lookup that hits costs one atomic load and no lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <shared_mutex>
#include <utility>

#include <cuda.h>

namespace gpuwire::cuda_abi {

// Safe to use from every thread. Contexts are names here: nothing is asked of them.
class ContextLocalStorage {
 public:
  using Destructor = void (*)(CUcontext context, void* key, void* value);

  ContextLocalStorage();

  // CUDA_ERROR_INVALID_HANDLE when the key is there already, as the driver answers.
  CUresult put(CUcontext context, void* key, void* value, Destructor destructor);
  // CUDA_ERROR_INVALID_HANDLE when the key is absent. Does not call the destructor.
  CUresult remove(CUcontext context, void* key);
  // CUDA_ERROR_INVALID_HANDLE when the key is absent; *value is then left alone.
  CUresult get(CUcontext context, void* key, void** value) const;
  // Removes all of a context's values and calls their destructors, without holding a lock: on reset and on destruction
  // of the context.
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
  // get(), whose rows name the generation read before the lookup, so that a row can only be older than the generation
  // that it is compared with, never newer.
  std::atomic<uint64_t> generation_;
};

}  // namespace gpuwire::cuda_abi
