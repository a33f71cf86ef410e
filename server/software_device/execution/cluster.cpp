#include "server/software_device/execution/cluster.hpp"

#include <bit>

#include "server/software_device/execution/lanes.hpp"
#include "server/software_device/execution/running_launch.hpp"

namespace gpuwire::software_device {

void Cluster::start(RunningLaunch& running, Executor& executor, uint64_t linear_index) {
  const Launch& launch = running.launch();
  const Dim3& extent = launch.cluster;
  launch_ = &running;
  size_ = extent.x * extent.y * extent.z;
  unfinished_ = size_;
  live_threads_ = size_ * launch.block.x * launch.block.y * launch.block.z;
  arrived_ = phase_ = 0;
  finished_.assign(size_, 0);
  while (blocks_.size() < size_) blocks_.push_back(std::make_unique<Block>());
  const Dim3 count{launch.grid.x / extent.x, launch.grid.y / extent.y, launch.grid.z / extent.z};
  const Dim3 cluster{static_cast<uint32_t>(linear_index % count.x),
                     static_cast<uint32_t>(linear_index / count.x % count.y),
                     static_cast<uint32_t>(linear_index / count.x / count.y)};
  for (uint32_t rank = 0; rank < size_; ++rank) {
    const Dim3 within{rank % extent.x, rank / extent.x % extent.y, rank / extent.x / extent.y};
    blocks_[rank]->start(
        running, executor, *this, rank,
        {cluster.x * extent.x + within.x, cluster.y * extent.y + within.y, cluster.z * extent.z + within.z});
  }
}

Cluster::Outcome Cluster::run(Executor& executor) {
  for (;;) {
    bool progress = false, suspended = false;
    for (uint32_t rank = 0; rank < size_; ++rank) {
      if (finished_[rank] || !blocks_[rank]->can_run()) continue;
      progress = true;
      switch (blocks_[rank]->run(executor)) {
        case Block::Outcome::finished:
          finished_[rank] = 1;
          --unfinished_;
          break;
        case Block::Outcome::suspended: suspended = true; break;
        case Block::Outcome::waiting: break;
        case Block::Outcome::faulted: return Outcome::faulted;
      }
    }
    if (unfinished_ == 0) return Outcome::finished;
    if (suspended) return Outcome::suspended;
    if (progress) continue;
    for (uint32_t rank = 0; rank < size_; ++rank) {
      if (finished_[rank]) continue;
      blocks_[rank]->fault_deadlock(executor);
      return Outcome::faulted;
    }
  }
}

void Cluster::arrive(Warp& warp, uint32_t lanes) {
  each_lane(lanes, [&](unsigned i) { warp.cluster_phase_[i] = phase_; });
  arrived_ += static_cast<uint32_t>(std::popcount(lanes));
  complete_phase_if_due();
}

uint32_t Cluster::must_wait(const Warp& warp, uint32_t lanes) const {
  uint32_t waiting = 0;
  each_lane(lanes, [&](unsigned i) { waiting |= static_cast<uint32_t>(warp.cluster_phase_[i] == phase_) << i; });
  return waiting;
}

void Cluster::threads_exited(Warp& warp, uint32_t lanes) {
  live_threads_ -= static_cast<uint32_t>(std::popcount(lanes));
  arrived_ -= static_cast<uint32_t>(std::popcount(must_wait(warp, lanes)));
  complete_phase_if_due();
}

void Cluster::complete_phase_if_due() {
  if (arrived_ == 0 || arrived_ < live_threads_) return;
  arrived_ = 0;
  ++phase_;
  for (uint32_t rank = 0; rank < size_; ++rank) blocks_[rank]->wake_from_cluster_barrier();
}

uint8_t* Cluster::shared_at(uint32_t rank, uint64_t offset, uint32_t bytes) {
  const uint64_t all = launch_->shared_bytes();
  if (rank >= size_ || offset >= all || bytes > all - offset) return nullptr;
  return blocks_[rank]->shared() + offset;
}

}  // namespace gpuwire::software_device
