// Handles of the driver API: numbers that represent objects and are never reused, so that a stale handle is always
// detected.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::software_device {

// The kind of a handle is in its upper bits, because a call may accept a CUfunction or a CUkernel in each other's
// place.
enum class HandleKind : uint64_t {
  context = 1,
  stream,
  event,
  module,
  function,
  library,
  kernel,
  allocation,
  pool,
  graph,
  graph_node,
  graph_exec,
  array,
  mipmapped_array,
  texture,
  surface,
  resource_descriptor
};

inline constexpr int kHandleKindShift = 40;
inline constexpr uint64_t kHandleStep = 16;  // looks like a pointer's alignment

inline HandleKind kind_of(const void* handle) noexcept {
  return static_cast<HandleKind>(reinterpret_cast<uintptr_t>(handle) >> kHandleKindShift);
}

// Objects by handle. Thread: any. find() shares ownership, so that an object outlives its removal while it is in use.
template <typename Handle, typename Object>
class HandleTable {
 public:
  explicit HandleTable(HandleKind kind) : next_(static_cast<uint64_t>(kind) << kHandleKindShift) {}

  // Reserves a handle, so that the object knows it before other threads can find the object.
  Handle reserve() noexcept { return make(next_.fetch_add(kHandleStep, std::memory_order_relaxed) + kHandleStep); }

  // Does nothing for an existing handle.
  void insert(Handle handle, std::shared_ptr<Object> object) {
    const ExclusiveLock lock(mutex_);
    objects_.emplace(key(handle), std::move(object));
  }

  std::shared_ptr<Object> find(Handle handle) const {
    const SharedLock lock(mutex_);
    const auto found = objects_.find(key(handle));
    return found == objects_.end() ? nullptr : found->second;
  }

  // Removes the object and returns it, or null if it is not in the table.
  std::shared_ptr<Object> take(Handle handle) {
    const ExclusiveLock lock(mutex_);
    const auto found = objects_.find(key(handle));
    if (found == objects_.end()) {
      return nullptr;
    }
    auto object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  template <typename Predicate>
  void remove_if(Predicate&& matches) {
    const ExclusiveLock lock(mutex_);
    std::erase_if(objects_, [&](const auto& entry) { return matches(*entry.second); });
  }

  std::vector<std::shared_ptr<Object>> all() const {
    const SharedLock lock(mutex_);
    std::vector<std::shared_ptr<Object>> out;
    for (const auto& [handle, object] : objects_) {
      out.push_back(object);
    }
    return out;
  }

 private:
  static uint64_t key(Handle handle) noexcept {
    if constexpr (std::is_pointer_v<Handle>) {
      return reinterpret_cast<uintptr_t>(handle);
    } else {
      return handle;
    }
  }
  static Handle make(uint64_t value) noexcept {
    if constexpr (std::is_pointer_v<Handle>) {
      return reinterpret_cast<Handle>(static_cast<uintptr_t>(value));
    } else {
      return value;
    }
  }

  mutable SharedMutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Object>> objects_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> next_;  // relaxed: only its uniqueness matters
};

}  // namespace gpuwire::software_device
