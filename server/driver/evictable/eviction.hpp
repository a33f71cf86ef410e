// Moves the blocks of EvictableMemory to host memory, and back to their addresses.
#pragma once

#include <cuda.h>

#include <string>
#include <vector>

#include "server/driver/evictable/chunk_copies.hpp"
#include "server/driver/evictable/evictable_memory.hpp"
#include "server/driver/evictable/host_copy.hpp"

namespace gpuwire::server {

enum class EvictionResult : uint8_t {
  done,
  refused,  // (out) nothing has changed
  no_room,  // (back) the device has too little free memory: the contents stay with the host, and it may be tried again
  lost,     // contents are lost, or cannot be brought back
};

struct EvictionOutcome {
  EvictionResult result = EvictionResult::done;
  std::string why;  // with every other result
};

// One in a session. Thread: the executor's, while no other thread calls the driver; each function blocks until it is
// done. Its copying threads (chunk_copies.hpp) have ended when it returns.
class Eviction {
 public:
  // `threads_max`: threads that copy at the same time. `memory` outlives the object.
  Eviction(EvictableMemory& memory, unsigned threads_max) : memory_(memory), threads_max_(threads_max) {}

  // Copies all blocks to the host; then unmaps and releases them. The device's memory is released only when all copies
  // have succeeded. done: also if there is nothing to move, or all is with the host already.
  EvictionOutcome out();
  // Maps all blocks again, copies the contents back, and frees the host memory. done: also if nothing is with the host.
  EvictionOutcome back();
  // Whether out() is done, and back() is not. Both then answer a repeated order without a call of the driver, which
  // blocks the calls of a process with a checkpoint.
  bool is_out() const { return is_out_; }

 private:
  std::vector<ChunkCopy> chunks_of(const EvictableMemory::Blocks& blocks) const;
  EvictionOutcome failed(EvictionResult result, const char* call, CUresult error) const;
  EvictionOutcome map_and_fill(EvictableMemory::Blocks& blocks, const EvictableMemory::MapAgain& map_again);

  EvictableMemory& memory_;
  const unsigned threads_max_;
  HostCopy copy_;  // of all chunks, in the order of their addresses; empty: there were none
  bool is_out_ = false;
};

}  // namespace gpuwire::server
