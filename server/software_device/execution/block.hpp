// One block of a grid: its warps, shared memory and barriers. A block is only data; any executor thread may run its
// next turn.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "server/software_device/execution/special_registers.hpp"
#include "server/software_device/execution/warp.hpp"

namespace gpuwire::software_device {

class Cluster;

inline constexpr uint32_t kBarriers = 16;
inline constexpr uint32_t kTurnsPerSlice = 16;  // of a block of an ordinary grid, before other blocks get the thread

class Block {
 public:
  enum class Outcome : uint8_t { finished, suspended, waiting, faulted };  // waiting: for other blocks of the cluster

  Block() = default;
  void start(RunningLaunch& launch, Executor& executor, Cluster& cluster, uint32_t rank, Dim3 index);
  Outcome run(Executor& executor);

  // Lanes of a warp arrive. `expected`: the number of threads that complete the barrier, 0 for all threads of the block
  // that have not exited. `true_lanes` are the lanes with a true predicate.
  void arrive(Warp& warp, uint32_t lanes, uint32_t barrier, uint32_t expected, uint32_t true_lanes);
  void complete_barriers();
  void threads_exited(Warp& warp, uint32_t lanes);
  void wake_from_cluster_barrier();
  bool can_run() const;
  void fault_deadlock(Executor& executor);

  Dim3 index() const { return index_; }
  Cluster& cluster() { return *cluster_; }
  uint32_t rank() const { return rank_; }
  RunningLaunch& launch() { return *launch_; }
  const uint8_t* block_area() const { return reinterpret_cast<const uint8_t*>(area_); }
  uint8_t* shared() { return shared_.get(); }

 private:
  struct Barrier {
    uint32_t arrived = 0;       // threads, including the missing lanes of partial warps
    uint32_t arrived_real = 0;  // threads
    uint32_t expected = 0;
    uint32_t credited_warps = 0;
    uint32_t true_lanes = 0;
  };
  void fill_area();
  void complete(uint32_t barrier);

  RunningLaunch* launch_ = nullptr;
  Dim3 index_;
  Cluster* cluster_ = nullptr;
  uint32_t rank_ = 0;
  std::vector<std::unique_ptr<Warp>> warps_;
  uint32_t warp_count_ = 0;
  std::vector<uint8_t> runnable_;
  uint32_t live_threads_ = 0;
  uint32_t live_warps_ = 0;
  Barrier barriers_[kBarriers];
  std::unique_ptr<uint8_t, Frame::Release> shared_;
  uint32_t shared_capacity_ = 0;
  alignas(64) uint32_t area_[static_cast<uint32_t>(BlockSpecial::count_)][kLanes];
};

}  // namespace gpuwire::software_device
