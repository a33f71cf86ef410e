// Server-side blocks that replace the client's memory in copy nodes of graphs.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include <capnp/list.h>

#include "protocol/threads/mutex.hpp"
#include "protocol/wire/byte_changes.hpp"
#include "server/base/host_memory.hpp"
#include "server/base/zeroed_memory.hpp"

namespace gpuwire::server {

class Replay;

// A block stands for a range of the client's memory; the client numbers them. The client writes its changes before each
// launch of a graph; the graph's writes leave before any report of its end. The executor makes, writes and ends blocks;
// any thread delivers.
class GraphMemory {
 public:
  explicit GraphMemory(Replay& replay) : replay_(replay) {}
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  // Makes a block of pinned memory, filled with zeros, in the current context; may reuse the memory of a destroyed
  // block. CUDA_ERROR_OUT_OF_MEMORY: a limit is exceeded.
  CUresult create(uint64_t number, uint64_t bytes, uint64_t& place);
  // Marks a block that no later launch uses. Its memory is released by release_destroyed() after its running launches
  // have ended.
  CUresult destroy(uint64_t number);
  // Releases the destroyed blocks if no work is in flight. May leave another context current.
  void release_destroyed();
  // Writes bytes of the client to a block. Returns false if there is no such block, or the bytes do not fit into it.
  bool write(uint64_t number, uint64_t offset, std::span<const std::byte> bytes, std::span<const uint8_t> mask);
  // Counts a launch of a graph that uses these blocks. Returns false if one of them does not exist. The caller must
  // call ended() once for each successful launched(), on any thread.
  bool launched(const std::vector<uint64_t>& numbers);
  void ended(const std::vector<uint64_t>& numbers);
  // Sends the writes of running graphs since the last time as graph_memory_data notices.
  void deliver();
  bool any_running() const { return running_.load(std::memory_order_acquire) != 0; }
  // Releases all blocks. Precondition: the session's contexts have ended.
  void clear();

 private:
  struct Block {
    std::byte* memory = nullptr;
    uint64_t mapped_bytes = 0;
    // The known content of the client's memory.
    ZeroedMemory shadow;
    // The charge of the shadow; the driver's ledger has the mapping.
    HostCharge charge;
    // The number of running launches that use the block.
    unsigned running = 0;
    bool destroyed = false;
  };
  CUresult map(Block& block) const;
  // Removes an unused destroyed block of this length and returns its memory, or null if there is none.
  std::byte* take_destroyed(uint64_t mapped_bytes) REQUIRES(mutex_);

  // Place and take_next() do for blocks of running launches what those of HostRegions do for regions.
  struct Place {
    uint64_t number = 0, offset = 0;
  };
  bool take_next(Place& place, Place& of, std::vector<wire::ByteChanges>& changes) REQUIRES(delivering_);

  Replay& replay_;
  // Held while sending, so that the next answering thread finds the data sent. Sending waits for room, which comes with
  // the client's next frames; so the thread that reads those frames and writes their data to blocks takes `mutex_`
  // alone.
  Mutex delivering_;
  // A leaf; not held during a driver call.
  Mutex mutex_;
  // The blocks by their numbers.
  std::map<uint64_t, Block> blocks_ GUARDED_BY(mutex_);
  uint64_t mapped_bytes_ GUARDED_BY(mutex_) = 0;
  // The number of destroyed blocks.
  size_t destroyed_ GUARDED_BY(mutex_) = 0;
  // Running launches; changed under mutex_. Acquire/release: a thread that answers for a launch was started after the
  // launch was counted.
  std::atomic<size_t> running_{0};
};

}  // namespace gpuwire::server
