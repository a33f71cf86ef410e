// Memory of the program that graphs copy from and to. A graph's copies happen on the server, so the nodes name blocks
// there that stand for the program's memory. The program's changes are sent before each launch, and a graph's writes
// come back before any report of its end.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/copy/range_counts.hpp"
#include "client_stub/driver/state/host_memory/region_changes.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "client_stub/session/session.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

class GraphMemory;
class ServerSession;

// A range of the program's memory and the server's block for it. The block ends at the server with the last graph, and
// the last launch, that uses it. The destructor sends a frame, so no lock may be held.
struct GraphBlock : std::enable_shared_from_this<GraphBlock> {
  explicit GraphBlock(GraphMemory& all) noexcept : all(all) {}
  ~GraphBlock();

  // The owner.
  GraphMemory& all;
  // The block's number on the wire.
  uint64_t number = 0;
  uint64_t base = 0, bytes = 0;
  // The server's address.
  uint64_t place = 0;
  // The content of the server's copy, as far as the client knows it.
  std::vector<std::byte> shadow;
  // A node copies into the block.
  bool written = false;
};

// The range that a node copies from or to. A range without a block is in a region of pinned memory, which the server
// has at the same address (HostRegions), so kernels may use it, too.
struct GraphUse {
  std::shared_ptr<GraphBlock> block;
  uint64_t address = 0, bytes = 0;
  bool written = false;
  // The address of that region.
  uint64_t region = 0;
};

// All ranges that the copies of a graph use, each once. Held by the executable graph and by its launches in flight
// (MemoryInFlight), so the blocks last as long as work that still writes to them.
struct GraphUses {
  std::vector<GraphUse> ranges;
  // The numbers of the blocks, each once.
  std::vector<uint64_t> blocks;
  // The ranges without a block: addresses, each followed by a number of bytes.
  std::vector<uint64_t> pinned;
  // The uses are the source of a late copy, which a function of the client sends.
  bool late = false;
};

// The graph memory of one session. Any thread. Programs without such copies pay one atomic load.
class GraphMemory final : public SessionPart {
 public:
  GraphMemory(ServerSession& session, SessionParts& parts) noexcept : SessionPart(parts), session_(session) {}

  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }

  // Finds or makes the block of a range; a node uses `place` instead of `address`. Returns CUDA_ERROR_NOT_SUPPORTED if
  // the range overlaps another one without being part of it, and one of the two is written to.
  CUresult use(const Caller& caller, uint64_t address, uint64_t bytes, bool written, GraphUse& out,
               uint64_t& place) noexcept;
  // Returns the program's address behind one of the server's, or 0 if the server's is in no block.
  uint64_t home(uint64_t place) const noexcept;

  // Sends the program's changes in the ranges that have a block. When it returns, the following frames find them.
  void push(const Caller& caller, std::span<const GraphUse> uses) noexcept;
  // Sends the changes in all ranges that work in flight may still use (MemoryInFlight), because a host function may
  // have changed any of them.
  void push_launched(const Caller& caller) noexcept;

  // For graph_memory_data notices. Thread: the one that reads the connection.
  BulkSink sink(size_t bytes);
  void stored(uint64_t number, uint64_t offset, std::span<const uint8_t> mask, size_t bytes);

  void ended(SessionEnd) noexcept override {}      // the blocks go with the program's graphs
  void after_fork_in_child() noexcept override {}  // a child does not use it

 private:
  friend struct GraphBlock;
  void forget(const GraphBlock& block) noexcept;
  // Finds the block of a range. CUDA_SUCCESS without a block: there is none, and nothing prevents a new one.
  CUresult find(uint64_t address, uint64_t bytes, bool written, std::shared_ptr<GraphBlock>& out) noexcept;
  CUresult find_or_make(const Caller& caller, uint64_t address, uint64_t bytes, bool written,
                        std::shared_ptr<GraphBlock>& block);
  CUresult create(const Caller& caller, uint64_t address, uint64_t bytes, std::shared_ptr<GraphBlock>& out);
  void find_changes(GraphBlock& block, uint64_t address, uint64_t bytes, std::vector<MirroredChange>& out)
      REQUIRES(mutex_);

  ServerSession& session_;
  // Outermost, and one at a time. The first is held while a block is made, the second while changes are found and sent.
  // A host function's writes must not wait for a new block, because its creation may wait for the function. Existing
  // blocks are found without either lock. The thread that reads the connection takes neither.
  Mutex making_, sending_;
  // A leaf; it guards the blocks' shadows and flags, too.
  mutable Mutex mutex_;
  // The blocks by their numbers. Each block removes itself before it ends.
  std::unordered_map<uint64_t, GraphBlock*> blocks_ GUARDED_BY(mutex_);
  // The ranges of the blocks.
  RangeCounts ranges_ GUARDED_BY(mutex_);
  uint64_t next_ GUARDED_BY(mutex_) = 1;
  // The bulk of the notice that is being read. Used by the reading thread only.
  std::vector<std::byte> incoming_;
  // The size of blocks_. Relaxed: a thread that launches a graph has synchronised with the thread that made it.
  std::atomic<size_t> count_{0};
};

}  // namespace gpuwire::client
