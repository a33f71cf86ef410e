// Blocks that run together and access each other's shared memory. Every block belongs to a cluster, usually of its own.
// One executor runs all blocks of a cluster in turns, so no state of a cluster needs a lock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "server/software_device/execution/block.hpp"

namespace gpuwire::software_device {

class Cluster {
 public:
  enum class Outcome : uint8_t { finished, suspended, faulted };

  void start(RunningLaunch& launch, Executor& executor, uint64_t linear_index);
  Outcome run(Executor& executor);

  // barrier.cluster. Each thread arrives once in a phase; the phase ends when all threads that have not exited have
  // arrived.
  void arrive(Warp& warp, uint32_t lanes);
  // Returns the lanes that have to wait for the phase in which they arrived.
  uint32_t must_wait(const Warp& warp, uint32_t lanes) const;
  void threads_exited(Warp& warp, uint32_t lanes);

  uint32_t size() const { return size_; }
  // Returns the host address of [offset, offset + bytes) of the shared memory of the block with that rank, or null.
  uint8_t* shared_at(uint32_t rank, uint64_t offset, uint32_t bytes);

 private:
  void complete_phase_if_due();

  RunningLaunch* launch_ = nullptr;
  uint32_t size_ = 1;
  std::vector<std::unique_ptr<Block>> blocks_;  // the first size_ blocks, by rank
  std::vector<uint8_t> finished_;
  uint32_t unfinished_ = 0;
  uint32_t live_threads_ = 0;
  uint32_t arrived_ = 0;
  uint32_t phase_ = 0;
};

}  // namespace gpuwire::software_device
