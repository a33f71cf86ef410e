// The server's managed memory by context: whole allocations, and blocks from which small ones are cut.
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

// The managed allocations of one session; contexts by handle. Any thread. A leaf lock, which is not held during a
// request or while memory is mapped.
class ManagedAllocations final : public SessionPart {
 public:
  explicit ManagedAllocations(SessionParts& parts) noexcept : SessionPart(parts) {}

  // Note that the context has this allocation of the server, mapped here, or no longer has it.
  void note_mapped(uint64_t context, uint64_t address);
  void note_unmapped(uint64_t context, uint64_t address);
  // Takes a small allocation from the context's blocks. Returns nothing if another block is needed (add_block()).
  std::optional<uint64_t> take_small(uint64_t context, uint64_t bytes);
  void add_block(uint64_t context, uint64_t base);
  // Takes an allocation of take_small() back. Returns a block that is no longer used.
  std::optional<uint64_t> give_small(uint64_t context, const SmallAllocation& given);
  // Puts the release of a freed allocation off, because work that uses it may still be in flight. take_put_off()
  // returns it when there is none.
  void put_off(uint64_t context, const SmallAllocation& freed);
  std::vector<SmallAllocation> take_put_off(uint64_t context);
  // Forgets the context, and returns its mapped blocks.
  std::vector<uint64_t> forget(uint64_t context) noexcept;

  void ended(SessionEnd) noexcept override {}      // the program keeps the memory, open
  void after_fork_in_child() noexcept override {}  // a child does not use it

 private:
  struct OfContext {
    ManagedHeap heap;
    // By first address; contains the blocks of the heap.
    std::vector<uint64_t> mapped;
    std::vector<SmallAllocation> put_off;
  };
  Mutex mutex_;
  std::map<uint64_t, OfContext> contexts_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::client
