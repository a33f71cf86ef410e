#include "server/software_device/execution/block.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "server/software_device/execution/cluster.hpp"
#include "server/software_device/execution/running_launch.hpp"

namespace gpuwire::software_device {

namespace {

// Returns the number of the multiprocessor on which a block reports to run: the launch's multiprocessors in turn.
uint32_t processor_of(uint64_t block, uint32_t count, uint32_t processors) {
  uint32_t among = count < 32 ? processors & ((1u << count) - 1) : processors;
  if (count > 32 || among == 0) return static_cast<uint32_t>(block % count);
  for (uint64_t skipped = block % std::popcount(among); skipped > 0; --skipped) among &= among - 1;
  return static_cast<uint32_t>(std::countr_zero(among));
}

}  // namespace

void Block::fill_area() {
  const Launch& launch = launch_->launch();
  auto set = [&](BlockSpecial which, uint32_t value) {
    std::fill_n(area_[static_cast<uint32_t>(which)], kLanes, value);
  };
  set(BlockSpecial::ntid_x, launch.block.x);
  set(BlockSpecial::ntid_y, launch.block.y);
  set(BlockSpecial::ntid_z, launch.block.z);
  set(BlockSpecial::ctaid_x, index_.x);
  set(BlockSpecial::ctaid_y, index_.y);
  set(BlockSpecial::ctaid_z, index_.z);
  set(BlockSpecial::nctaid_x, launch.grid.x);
  set(BlockSpecial::nctaid_y, launch.grid.y);
  set(BlockSpecial::nctaid_z, launch.grid.z);
  uint32_t sms = std::max<uint32_t>(launch.sm_count, 1);
  set(BlockSpecial::nwarpid, 32);
  const uint64_t linear = index_.x + uint64_t{launch.grid.x} * (index_.y + uint64_t{launch.grid.y} * index_.z);
  set(BlockSpecial::smid, processor_of(linear, sms, launch.processors));
  set(BlockSpecial::nsmid, sms);
  set(BlockSpecial::dynamic_smem_size, launch.dynamic_shared_bytes);
  set(BlockSpecial::total_smem_size, launch_->shared_bytes());
  set(BlockSpecial::zero, 0);
  set(BlockSpecial::one, 1);
  uint64_t workspace = launch.cooperative ? launch_->workspace() : 0;
  set(BlockSpecial::envreg1, static_cast<uint32_t>(workspace >> 32));
  set(BlockSpecial::envreg2, static_cast<uint32_t>(workspace));
  set(BlockSpecial::grid_low, static_cast<uint32_t>(launch_->grid_id()));
  set(BlockSpecial::grid_high, static_cast<uint32_t>(launch_->grid_id() >> 32));
  set(BlockSpecial::reserved_smem_offset, 0);
  const Dim3& cluster = launch.cluster;
  set(BlockSpecial::cluster_ctaid_x, index_.x % cluster.x);
  set(BlockSpecial::cluster_ctaid_y, index_.y % cluster.y);
  set(BlockSpecial::cluster_ctaid_z, index_.z % cluster.z);
  set(BlockSpecial::cluster_nctaid_x, cluster.x);
  set(BlockSpecial::cluster_nctaid_y, cluster.y);
  set(BlockSpecial::cluster_nctaid_z, cluster.z);
  set(BlockSpecial::clusterid_x, index_.x / cluster.x);
  set(BlockSpecial::clusterid_y, index_.y / cluster.y);
  set(BlockSpecial::clusterid_z, index_.z / cluster.z);
  set(BlockSpecial::nclusterid_x, launch.grid.x / cluster.x);
  set(BlockSpecial::nclusterid_y, launch.grid.y / cluster.y);
  set(BlockSpecial::nclusterid_z, launch.grid.z / cluster.z);
  set(BlockSpecial::cluster_ctarank, rank_);
  set(BlockSpecial::cluster_nctarank, cluster_->size());
  set(BlockSpecial::explicit_cluster, launch.explicit_cluster ? kAllLanes : 0);
}

void Block::start(RunningLaunch& running, Executor& executor, Cluster& cluster, uint32_t rank, Dim3 index) {
  launch_ = &running;
  cluster_ = &cluster;
  rank_ = rank;
  index_ = index;
  const Launch& launch = running.launch();
  fill_area();
  if (shared_capacity_ < running.shared_bytes()) {
    shared_.reset(static_cast<uint8_t*>(::operator new (running.shared_bytes(), std::align_val_t{64})));
    shared_capacity_ = running.shared_bytes();
  }
  if (running.shared_bytes() != 0) std::memset(shared_.get(), 0, running.shared_bytes());
  live_threads_ = launch.block.x * launch.block.y * launch.block.z;
  warp_count_ = (live_threads_ + kLanes - 1) / kLanes;
  live_warps_ = warp_count_;
  while (warps_.size() < warp_count_) warps_.push_back(std::make_unique<Warp>());
  runnable_.assign(warp_count_, 1);
  for (Barrier& barrier : barriers_) barrier = {};
  Dim3 thread{0, 0, 0};
  for (uint32_t w = 0; w < warp_count_; ++w) {
    Warp& warp = *warps_[w];
    warp.index_ = w;
    auto area = [&](ThreadSpecial which) { return warp.thread_area_[static_cast<uint32_t>(which)]; };
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      area(ThreadSpecial::tid_x)[lane] = thread.x;
      area(ThreadSpecial::tid_y)[lane] = thread.y;
      area(ThreadSpecial::tid_z)[lane] = thread.z;
      if (++thread.x == launch.block.x) {
        thread.x = 0;
        if (++thread.y == launch.block.y) thread.y = 0, ++thread.z;
      }
      area(ThreadSpecial::laneid)[lane] = lane;
      area(ThreadSpecial::warpid)[lane] = w;
      area(ThreadSpecial::lanemask_eq)[lane] = 1u << lane;
      area(ThreadSpecial::lanemask_lt)[lane] = (1u << lane) - 1;
      area(ThreadSpecial::lanemask_le)[lane] = ((1u << lane) - 1) | 1u << lane;
      area(ThreadSpecial::lanemask_gt)[lane] = ~(((1u << lane) - 1) | 1u << lane);
      area(ThreadSpecial::lanemask_ge)[lane] = ~((1u << lane) - 1);
    }
    uint32_t threads = std::min(kLanes, live_threads_ - w * kLanes);
    warp.start(*this, executor, threads == kLanes ? kAllLanes : (1u << threads) - 1, running.function());
  }
}

Block::Outcome Block::run(Executor& executor) {
  uint32_t turns = launch_->launch().cooperative ? 1 : kTurnsPerSlice;
  bool polled = false;
  while (live_warps_ > 0) {
    bool progress = false;
    bool yielded = false;
    for (uint32_t w = 0; w < warp_count_; ++w) {
      if (!runnable_[w]) continue;
      progress = true;
      switch (warps_[w]->run(executor)) {
        case Warp::Outcome::exited:
          runnable_[w] = 0;
          --live_warps_;
          break;
        case Warp::Outcome::blocked:
          // This warp's own arrival or exit may have opened the barrier.
          runnable_[w] = 0;
          for (const Fragment& fragment : warps_[w]->fragments())
            runnable_[w] |= fragment.state == Fragment::State::ready;
          break;
        case Warp::Outcome::yielded: yielded = true; break;
        case Warp::Outcome::faulted: return Outcome::faulted;
      }
    }
    if (launch_->stopped()) return Outcome::faulted;
    // The cluster decides whether another block can end this wait.
    if (live_warps_ > 0 && !progress) return Outcome::waiting;
    if (yielded && !polled) {
      polled = true;
      if (launch_->poll_cancelled()) return Outcome::faulted;
    }
    if (yielded && --turns == 0) return Outcome::suspended;
  }
  return Outcome::finished;
}

bool Block::can_run() const { return std::find(runnable_.begin(), runnable_.end(), 1) != runnable_.end(); }

void Block::wake_from_cluster_barrier() {
  for (uint32_t w = 0; w < warp_count_; ++w) {
    for (Fragment& fragment : warps_[w]->fragments()) {
      if (fragment.state != Fragment::State::at_cluster) continue;
      fragment.state = Fragment::State::ready;
      runnable_[w] = 1;
    }
  }
}

// A real device would hang here until its watchdog or the user ends the kernel.
void Block::fault_deadlock(Executor&) {
  for (uint32_t w = 0; w < warp_count_; ++w) {
    Warp& warp = *warps_[w];
    for (const Fragment& fragment : warp.fragments()) {
      warp.frame_ = fragment.frame;
      bool barrier = fragment.state != Fragment::State::at_exchange;
      const Op& op = barrier ? *fragment.barrier_op : *fragment.pc;
      std::string what = barrier ? "deadlock: threads wait at a barrier that the others never reach"
                                 : "deadlock: lanes wait for lanes of their member mask that never come";
      return warp.fault(Fault::trap, static_cast<uint32_t>(std::countr_zero(fragment.mask)), op, std::move(what));
    }
  }
}

void Block::arrive(Warp& warp, uint32_t lanes, uint32_t index, uint32_t expected, uint32_t true_lanes) {
  Barrier& barrier = barriers_[index];
  uint32_t count = static_cast<uint32_t>(std::popcount(lanes));
  barrier.arrived += count;
  barrier.arrived_real += count;
  barrier.true_lanes += static_cast<uint32_t>(std::popcount(true_lanes));
  if (expected != 0) barrier.expected = expected;
  // "The arrival count is incremented by the warp size, not the number of active threads" (PTX ISA 9.7.13.1).
  if (!(barrier.credited_warps >> warp.index_ & 1)) {
    barrier.credited_warps |= 1u << warp.index_;
    barrier.arrived += kLanes - static_cast<uint32_t>(std::popcount(warp.live_));
  }
}

void Block::complete_barriers() {
  for (uint32_t i = 0; i < kBarriers; ++i) {
    Barrier& barrier = barriers_[i];
    if (barrier.arrived_real == 0) continue;
    if (barrier.expected != 0 ? barrier.arrived >= barrier.expected : barrier.arrived_real >= live_threads_)
      complete(i);
  }
}

void Block::threads_exited(Warp& warp, uint32_t lanes) {
  live_threads_ -= static_cast<uint32_t>(std::popcount(lanes));
  complete_barriers();
  cluster_->threads_exited(warp, lanes);
}

void Block::complete(uint32_t index) {
  uint32_t true_lanes = barriers_[index].true_lanes;
  uint32_t threads = barriers_[index].arrived_real;
  barriers_[index] = {};
  for (uint32_t w = 0; w < warp_count_; ++w) {
    for (Fragment& fragment : warps_[w]->fragments()) {
      if (fragment.state != Fragment::State::at_barrier || fragment.barrier != index) continue;
      fragment.state = Fragment::State::ready;
      runnable_[w] = 1;
      if (fragment.barrier_op->definitions == 0) continue;
      const Op& op = *fragment.barrier_op;
      uint8_t* result = fragment.frame->memory.get() + op.ref[0].offset();
      bool any = true_lanes != 0, all = true_lanes == threads;
      if (op.detail == 0) {
        for (uint32_t left = fragment.mask; left != 0; left &= left - 1) {
          reinterpret_cast<uint32_t*>(result)[std::countr_zero(left)] = true_lanes;
        }
      } else {
        uint32_t& word = *reinterpret_cast<uint32_t*>(result);
        word = (word & ~fragment.mask) | ((op.detail == 1 ? all : any) ? fragment.mask : 0);
      }
    }
  }
}

}  // namespace gpuwire::software_device
