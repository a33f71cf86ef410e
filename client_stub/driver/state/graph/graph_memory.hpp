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

// A range of the program's memory and the server's block for it. Ends at the server with the last graph, and the last
// launch, that uses it: so never under a lock.
struct GraphBlock : std::enable_shared_from_this<GraphBlock> {
  explicit GraphBlock(GraphMemory& all) noexcept : all(all) {}
  ~GraphBlock();

  GraphMemory& all;     // whose it is
  uint64_t number = 0;  // its name on the wire
  uint64_t base = 0, bytes = 0;
  uint64_t place = 0;             // the server's address
  std::vector<std::byte> shadow;  // the content of the server's copy, as far as known here
  bool written = false;           // some node copies into it
};

// The range that a node copies from or to. Without a block it is in a region of pinned memory, which the server has at
// the same address (HostRegions): kernels may use it, too.
struct GraphUse {
  std::shared_ptr<GraphBlock> block;
  uint64_t address = 0, bytes = 0;
  bool written = false;
  uint64_t region = 0;  // the address of that region
};

// All ranges that the copies of a graph use, each once. Held by the executable graph and by its launches in flight
// (MemoryInFlight), so the blocks last as long as work that still writes to them.
struct GraphUses {
  std::vector<GraphUse> ranges;
  std::vector<uint64_t> blocks;  // numbers, each once
  std::vector<uint64_t> pinned;  // the ranges without a block: addresses, each followed by a number of bytes
  bool late = false;             // the source of a late copy, which a function of ours sends: no other has to
};

// That of one session. Any thread. Programs without such copies pay one atomic load.
class GraphMemory final : public SessionPart {
 public:
  GraphMemory(ServerSession& session, SessionParts& parts) noexcept : SessionPart(parts), session_(session) {}

  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }

  // Finds or makes the block; a node is to use `place` instead of `address`. CUDA_ERROR_NOT_SUPPORTED: a range that
  // overlaps another one without being part of it, when one of the two is written to.
  CUresult use(const Caller& caller, uint64_t address, uint64_t bytes, bool written, GraphUse& out,
               uint64_t& place) noexcept;
  // The program's address behind one of the server's; 0: it is in no block.
  uint64_t home(uint64_t place) const noexcept;

  // Sends the program's changes in those that have a block. When it returns, the following frames find them.
  void push(const Caller& caller, std::span<const GraphUse> uses) noexcept;
  // The same for all that work under way may still use (MemoryInFlight): a host function may have changed any.
  void push_launched(const Caller& caller) noexcept;

  // For graph_memory_data notices. The thread that reads the connection.
  BulkSink sink(size_t bytes);
  void stored(uint64_t number, uint64_t offset, std::span<const uint8_t> mask, size_t bytes);

  void ended(SessionEnd) noexcept override {}      // the blocks go with the program's graphs
  void after_fork_in_child() noexcept override {}  // nobody there asks

 private:
  friend struct GraphBlock;
  void forget(const GraphBlock& block) noexcept;
  // CUDA_SUCCESS without a block: there is none, and nothing is in the way of one.
  CUresult find(uint64_t address, uint64_t bytes, bool written, std::shared_ptr<GraphBlock>& out) noexcept;
  CUresult find_or_make(const Caller& caller, uint64_t address, uint64_t bytes, bool written,
                        std::shared_ptr<GraphBlock>& block);
  CUresult create(const Caller& caller, uint64_t address, uint64_t bytes, std::shared_ptr<GraphBlock>& out);
  void find_changes(GraphBlock& block, uint64_t address, uint64_t bytes, std::vector<MirroredChange>& out)
      REQUIRES(mutex_);

  ServerSession& session_;
  // Outermost, and one at a time: held while a block is made, and while changes are found and sent. A host function's
  // writes must not wait for the making of a block, which may wait for the function. Known blocks are found without
  // either lock. The thread that reads takes neither.
  Mutex making_, sending_;
  mutable Mutex mutex_;  // a leaf; it guards the blocks' shadows and flags, too
  std::unordered_map<uint64_t, GraphBlock*> blocks_
      GUARDED_BY(mutex_);                  // by number; each takes itself out before it goes
  RangeCounts ranges_ GUARDED_BY(mutex_);  // theirs
  uint64_t next_ GUARDED_BY(mutex_) = 1;
  std::vector<std::byte> incoming_;  // bulk of the notice being read; the reading thread only
  std::atomic<size_t> count_{0};  // blocks_.size(). Relaxed: a thread that launches a graph synchronised with its maker
};

}  // namespace gpuwire::client
