#include "protocol/cuda_abi/context_local_storage.hpp"

#include <pthread.h>

#include <array>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

namespace gpuwire::cuda_abi {
namespace {

// Generation 0 is never assigned: it marks an empty row of a cache.
std::atomic<uint64_t> last_generation{0};

struct CachedLookup {
  uint64_t generation = 0;
  CUcontext context = nullptr;
  void* key = nullptr;
  void* value = nullptr;
};

constexpr size_t kCacheRows = 8;
using LookupCache = std::array<CachedLookup, kCacheRows>;

// A pointer and not the cache itself: a library that is loaded late shares a few hundred bytes of static thread-local
// storage with other libraries (glibc.rtld.optional_static_tls), and cannot be loaded if these do not suffice.
thread_local constinit LookupCache* lookup_cache = nullptr;

void end_cache(void* cache) noexcept {
  lookup_cache = nullptr;
  delete static_cast<LookupCache*>(cache);
}

// Creates the calling thread's cache, which is freed when the thread ends. Returns null if memory is short.
LookupCache* make_cache() noexcept {
  static const std::optional<pthread_key_t> key = []() -> std::optional<pthread_key_t> {
    pthread_key_t made{};
    return pthread_key_create(&made, end_cache) == 0 ? std::optional(made) : std::nullopt;
  }();
  if (!key) return nullptr;
  auto* made = new (std::nothrow) LookupCache;
  if (made && pthread_setspecific(*key, made) != 0) {
    delete made;
    return nullptr;
  }
  return lookup_cache = made;
}

// Returns null if there is no cache.
CachedLookup* cache_row(CUcontext context, void* key) noexcept {
  LookupCache* cache = lookup_cache ? lookup_cache : make_cache();
  if (!cache) return nullptr;
  const auto mixed = (reinterpret_cast<uintptr_t>(context) ^ reinterpret_cast<uintptr_t>(key)) * 0x9E3779B97F4A7C15u;
  return &(*cache)[mixed >> 61];
}

}  // namespace

ContextLocalStorage::ContextLocalStorage() { invalidate_caches(); }

// Relaxed for the counter, because only its uniqueness matters. The release pairs with the acquire in get().
void ContextLocalStorage::invalidate_caches() noexcept {
  generation_.store(last_generation.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_release);
}

CUresult ContextLocalStorage::put(CUcontext context, void* key, void* value, Destructor destructor) {
  const std::unique_lock lock(mutex_);
  if (!entries_.try_emplace({context, key}, Entry{value, destructor}).second) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  invalidate_caches();
  return CUDA_SUCCESS;
}

CUresult ContextLocalStorage::remove(CUcontext context, void* key) {
  const std::unique_lock lock(mutex_);
  if (entries_.erase({context, key}) == 0) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  invalidate_caches();
  return CUDA_SUCCESS;
}

CUresult ContextLocalStorage::get(CUcontext context, void* key, void** value) const {
  const uint64_t generation = generation_.load(std::memory_order_acquire);
  CachedLookup* const row = cache_row(context, key);
  if (row && row->generation == generation && row->context == context && row->key == key) {
    *value = row->value;
    return CUDA_SUCCESS;
  }
  const std::shared_lock lock(mutex_);
  const auto found = entries_.find({context, key});
  if (found == entries_.end()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (row) *row = {generation, context, key, found->second.value};
  *value = found->second.value;
  return CUDA_SUCCESS;
}

void ContextLocalStorage::drop_context(CUcontext context) {
  std::vector<std::pair<Key, Entry>> dropped;
  {
    const std::unique_lock lock(mutex_);
    const auto first = entries_.lower_bound({context, nullptr});
    auto last = first;
    for (; last != entries_.end() && last->first.first == context; ++last) {
      dropped.push_back(*last);
    }
    entries_.erase(first, last);
    invalidate_caches();
  }
  for (const auto& [key, entry] : dropped) {
    if (entry.destructor != nullptr) {
      entry.destructor(context, key.second, entry.value);
    }
  }
}

}  // namespace gpuwire::cuda_abi
