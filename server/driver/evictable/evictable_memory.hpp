// Large blocks of cuMemAlloc from virtual memory, so that a suspension can copy them out, release them, and later map
// them at the same addresses (eviction.hpp). The program notices nothing of it: every function that shows the
// difference answers as for memory that the driver has allocated.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "protocol/threads/mutex.hpp"
#include "server/driver/evictable/evictable_block.hpp"
#include "server/driver_table.hpp"

namespace gpuwire::server {

// Smaller allocations stay with the driver, and move with its checkpoint. A multiple of the granularity of virtual
// memory (2 MiB on all devices so far), so that a block takes no more memory than the driver's own allocation.
inline constexpr uint64_t kEvictableBytesMin = uint64_t{4} << 20;
// The most memory of one physical allocation: the copies of several chunks of one block go on at the same time.
inline constexpr uint64_t kEvictableChunkBytesMax = uint64_t{256} << 20;

// At most one in a process: the driver's table has no room for a pointer to it. Thread: any.
//
// Lock: mutex_ is a leaf of the layers in front. It is held over the driver's calls that map, unmap and give access,
// and never while work of a device is waited for.
class EvictableMemory {
 public:
  struct Settings {
    uint64_t block_bytes_min = kEvictableBytesMin;
    uint64_t chunk_bytes_max = kEvictableChunkBytesMax;
    // Whether the session captures a stream, as far as known: a free cannot wait for the device then. Empty: unknown.
    std::function<bool()> captures = {};
  };
  // Copies the table `driver`, which is the library's. Precondition: the driver is initialised.
  EvictableMemory(const DriverTable& driver, Settings settings);
  ~EvictableMemory();
  EvictableMemory(const EvictableMemory&) = delete;
  EvictableMemory& operator=(const EvictableMemory&) = delete;

  // Replaces the functions that concern blocks. Precondition: the table has the functions of `driver`.
  void put_before(DriverTable& table);

  using Blocks = std::map<CUdeviceptr, EvictableBlock>;  // by their begins
  // Maps a block whose chunks have no memory, with the access and the attributes that the program has set.
  using MapAgain = std::function<CUresult(EvictableBlock&)>;
  // Calls `use(blocks, map_again)` with the lock held, after it has freed the blocks that waited for that. `use` leaves
  // all blocks mapped, or none.
  template <class Use>
  auto with_blocks(Use&& use) {
    free_waiting();
    MutexLock lock(mutex_);
    const MapAgain map_again = [this](EvictableBlock& block) REQUIRES(mutex_) { return map_block(block); };
    return use(blocks_, map_again);
  }
  const DriverTable& driver() const { return driver_; }

  // --- the functions of the table ----------------------------------------------------------------------------------
  CUresult allocate(CUdeviceptr* address, size_t bytes);
  CUresult free(CUdeviceptr address);
  CUresult free_async(CUdeviceptr address, CUstream stream);
  CUresult memory_info(size_t* free_bytes, size_t* total_bytes);
  CUresult address_range(CUdeviceptr* begin, size_t* bytes, CUdeviceptr address);
  CUresult attribute(void* out, CUpointer_attribute attribute, CUdeviceptr address);
  CUresult attributes(unsigned count, CUpointer_attribute* attributes, void** out, CUdeviceptr address);
  CUresult set_attribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address);
  // Whether a part of the range is in a block.
  bool touches(CUdeviceptr address, uint64_t bytes) const;
  CUresult enable_peer(CUcontext peer, unsigned flags);
  CUresult disable_peer(CUcontext peer);
  CUresult retain_primary(CUcontext* context, CUdevice device);
  // Called after a call that may have ended primary contexts. Returns `result`.
  CUresult primaries_released(CUresult result);
  CUresult destroy_context(CUcontext context);
  CUresult context_of_green(CUcontext* context, CUgreenCtx green);
  CUresult destroy_green(CUgreenCtx green);

 private:
  // A freed block, and the event after which its memory is released.
  struct Waiting {
    EvictableBlock block;
    CUevent event = nullptr;  // null: the end of the captures
  };
  struct Place {
    CUcontext context = nullptr;
    CUdevice device = 0;
  };

  // Returns the current context's errors, as an allocation of the driver does.
  CUresult here(Place& place) const;
  // A green context owns no memory: it belongs to the primary context.
  CUcontext owner_of(const Place& place) const REQUIRES(mutex_);
  uint64_t granularity(CUdevice device) REQUIRES(mutex_);
  // Nothing: the driver has no room, or no virtual memory.
  std::optional<EvictableBlock> make_block(const Place& place, uint64_t bytes) REQUIRES(mutex_);
  // The block that contains the address. The program's view of a block ends with the bytes that it asked for.
  std::optional<EvictableBlock> find(CUdeviceptr address) const;
  CUresult map_block(EvictableBlock& block) REQUIRES(mutex_);
  bool has_access(CUdevice device, CUcontext owner) const REQUIRES(mutex_);
  // Takes the device's access away from blocks of contexts to which it has none any more.
  void revoke_access(CUdevice device) REQUIRES(mutex_);
  void release(EvictableBlock& block) REQUIRES(mutex_);
  // Frees the blocks of waiting_ that need not wait any more.
  void free_waiting();
  bool captures() const { return settings_.captures && settings_.captures(); }
  void context_gone(CUcontext context);

  const DriverTable driver_;
  const Settings settings_;
  const BlockMapper mapper_{driver_};
  mutable Mutex mutex_;
  Blocks blocks_ GUARDED_BY(mutex_);
  std::vector<Waiting> waiting_ GUARDED_BY(mutex_);
  std::map<CUdevice, uint64_t> granularities_ GUARDED_BY(mutex_);
  std::map<CUdevice, CUcontext> primaries_ GUARDED_BY(mutex_);
  std::map<CUcontext, CUgreenCtx> greens_ GUARDED_BY(mutex_);
  // Peer access that the program has enabled: the accessing context and its device, and the context of the memory.
  struct Accessor {
    CUcontext context = nullptr;
    CUdevice device = 0;
    auto operator<=>(const Accessor&) const = default;
  };
  std::set<std::pair<Accessor, CUcontext>> peers_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::server
