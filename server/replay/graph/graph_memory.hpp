// Memory of the client that graphs copy from and to: blocks here that stand for it in the nodes.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include <capnp/list.h>

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

  // Pinned memory, zero at first, in the current context: perhaps that of a block which was destroyed.
  // CUDA_ERROR_OUT_OF_MEMORY: over a limit.
  CUresult create(uint64_t number, uint64_t bytes, uint64_t& place);
  // The client launches no graph with it any more; it goes when the launches that run have ended, and nothing that
  // would hold its end up is under way.
  CUresult destroy(uint64_t number);
  // Destroyed blocks end, if no work is in flight. Leaves another context current.
  void release_destroyed();
  // False: no such block, or it does not fit.
  bool write(uint64_t number, uint64_t offset, std::span<const std::byte> bytes, std::span<const uint8_t> mask);
  // A graph that uses these blocks is about to be launched; false: there is no such block. Each is to be followed by
  // ended(), any thread.
  bool launched(const std::vector<uint64_t>& numbers);
  void ended(const std::vector<uint64_t>& numbers);
  // Sends the writes of running graphs since the last time as graph_memory_data notices.
  void deliver();
  bool any_running() const { return running_.load(std::memory_order_acquire) != 0; }
  // At the end of the session, when the contexts are gone.
  void clear();

 private:
  struct Block {
    std::byte* memory = nullptr;
    uint64_t mapped_bytes = 0;
    ZeroedMemory shadow;   // the content of the client's memory, as far as known here
    HostCharge charge;     // of the shadow; the driver's ledger has the mapping
    unsigned running = 0;  // launches that use it
    bool destroyed = false;
  };
  CUresult map(Block& block) const;
  // Under the lock. The memory of a destroyed block of this length that nothing uses, which is no block any more; or
  // null.
  std::byte* take_destroyed(uint64_t mapped_bytes);

  // As of HostRegions, of running blocks.
  struct Place {
    uint64_t number = 0, offset = 0;
  };
  bool take_next(Place& place, Place& of, std::vector<wire::ByteChanges>& changes);

  Replay& replay_;
  // Held while sending, so that the next answering thread finds that the data have left. Sending waits for room, which
  // comes with the client's next frames; the thread that reads them, and writes their data to blocks, takes `mutex_`
  // alone.
  std::mutex delivering_;
  std::mutex mutex_;                  // a leaf, not held while the driver is called
  std::map<uint64_t, Block> blocks_;  // by number
  uint64_t mapped_bytes_ = 0;
  size_t destroyed_ = 0;  // the number of them
  // Launches under way, changed under the lock. Acquire/release: a thread that answers for a launch was started after
  // it was counted.
  std::atomic<size_t> running_{0};
};

}  // namespace gpuwire::server
