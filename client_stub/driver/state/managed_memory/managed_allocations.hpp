// Which of the server's managed memory each context has: whole allocations, and blocks that small ones are cut from.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "client_stub/driver/state/managed_memory/managed_heap.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

struct SmallAllocation {
  uint64_t address = 0;
  uint64_t bytes = 0;
};

// Those of one session; contexts by handle. Any thread; a leaf lock: never held while something is asked of the server
// or mapped.
class ManagedAllocations final : public SessionPart {
 public:
  explicit ManagedAllocations(SessionParts& parts) noexcept : SessionPart(parts) {}

  // The context has this allocation of the server now, mapped here.
  void note_mapped(uint64_t context, uint64_t address);
  void note_unmapped(uint64_t context, uint64_t address);
  // A small allocation out of the context's blocks; nothing: it needs one more, add_block().
  std::optional<uint64_t> take_small(uint64_t context, uint64_t bytes);
  void add_block(uint64_t context, uint64_t base);
  // Takes a block of take_small() back. A block that is no longer used is returned.
  std::optional<uint64_t> give_small(uint64_t context, const SmallAllocation& given);
  // The block has been freed, and work that uses it may still be in flight: take_put_off() returns it once there is
  // none.
  void put_off(uint64_t context, const SmallAllocation& freed);
  std::vector<SmallAllocation> take_put_off(uint64_t context);
  // Forgets the context, and returns its mapped blocks.
  std::vector<uint64_t> forget(uint64_t context) noexcept;

  void ended(SessionEnd) noexcept override {}      // the program keeps the memory, open
  void after_fork_in_child() noexcept override {}  // nobody there asks

 private:
  struct OfContext {
    ManagedHeap heap;
    std::vector<uint64_t> mapped;  // by first address, blocks of the heap among them
    std::vector<SmallAllocation> put_off;
  };
  Mutex mutex_;
  std::map<uint64_t, OfContext> contexts_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::client
