// Memory of the program that graphs copy from and to. A graph's copies happen on the server, so the nodes name blocks
// there that stand for the program's memory; what the program changed is sent before each launch, and what a graph
// wrote comes back before anything that reports its end.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "client_stub/driver/call/caller.hpp"
#include "client_stub/driver/host_memory/region_changes.hpp"
#include "client_stub/driver/session/session_part.hpp"
#include "client_stub/session/session.hpp"

namespace gpuwire::client {

class GraphMemory;
class ServerSession;

// A range of the program's memory and the server's block for it. Ends at the server with the last graph that uses it:
// so never under a lock.
struct GraphBlock : std::enable_shared_from_this<GraphBlock> {
  explicit GraphBlock(GraphMemory& all) noexcept : all(all) {}
  ~GraphBlock();

  GraphMemory& all;     // whose it is
  uint64_t number = 0;  // its name on the wire
  uint64_t base = 0, bytes = 0;
  uint64_t place = 0;             // the server's address
  std::vector<std::byte> shadow;  // what the server's copy holds, as far as known here
  bool written = false;           // some node copies into it
  // The newest launch that uses it: stream and frame. Nothing of the program's memory is looked at once that is done.
  ContextState* context = nullptr;
  uint64_t stream = 0, launch = 0;
};

// What a node copies from or to.
struct GraphUse {
  std::shared_ptr<GraphBlock> block;
  uint64_t address = 0, bytes = 0;
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
  // May a launched graph still copy into any of these bytes?
  bool being_written(uint64_t address, uint64_t bytes) const noexcept;

  // Sends what the program has changed in these. When it returns, the frames that follow find it.
  void push(const Caller& caller, std::span<const GraphUse> uses) noexcept;
  // The same for all that launched graphs may still use: a host function may have changed any.
  void push_launched(const Caller& caller) noexcept;
  void note_launch(const Caller& caller, std::span<const GraphUse> uses, uint64_t stream, uint64_t sequence) noexcept;

  // For graph_memory_data notices. The thread that reads the connection.
  BulkSink sink(size_t bytes);
  void stored(uint64_t number, uint64_t offset, std::span<const uint8_t> mask, size_t bytes);

  void ended(SessionEnd) noexcept override {}      // the blocks go with the program's graphs
  void after_fork_in_child() noexcept override {}  // nobody there asks

 private:
  friend struct GraphBlock;
  void forget(const GraphBlock& block) noexcept;
  CUresult find(uint64_t address, uint64_t bytes, bool written, std::shared_ptr<GraphBlock>& out) noexcept;
  CUresult create(const Caller& caller, uint64_t address, uint64_t bytes, std::shared_ptr<GraphBlock>& out) noexcept;
  void find_changes(GraphBlock& block, uint64_t address, uint64_t bytes, std::vector<MirroredChange>& out);

  ServerSession& session_;
  // Outermost, and one at a time: held while a block is made, and while changes are found and sent. A host function's
  // writes must not wait for the making of a block, which may wait for the function. The thread that reads takes
  // neither.
  std::mutex making_, sending_;
  mutable std::mutex mutex_;                          // a leaf: all below, and the blocks' shadows, flags and launches
  std::unordered_map<uint64_t, GraphBlock*> blocks_;  // by number; each takes itself out before it goes
  uint64_t next_ = 1;
  std::vector<std::byte> incoming_;  // bulk of the notice being read; the reading thread only
  std::atomic<size_t> count_{0};     // blocks_.size(). Relaxed: who launches a graph synchronised with whoever made it
};

}  // namespace gpuwire::client
