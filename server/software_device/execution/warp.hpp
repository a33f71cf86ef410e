// The state of one warp, and the rule by which its lanes take turns.
//
// Lanes at the same instruction of the same frame run as one fragment. A divergent branch splits a fragment; fragments
// merge where they meet. The fragment deepest in calls runs first, and among equals the one at the lowest instruction,
// so that fragments meet again at the end of the code over which they diverged (S. Collange, "Stack-less SIMT
// reconvergence at low cost", 2011). After every kBranchesPerTurn branches, the fragment that has waited longest gets a
// turn, so that spinning lanes do not starve the lanes for which they wait.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/software_device/execution/op.hpp"
#include "server/software_device/execution/program.hpp"
#include "server/software_device/execution/special_registers.hpp"

namespace gpuwire::software_device {

class Block;
class Executor;
class RunningLaunch;

inline constexpr uint32_t kBranchesPerTurn = 1024;
inline constexpr uint32_t kBranchesPerCooperativeTurn = 64;  // blocks that spin on a grid barrier yield soon
inline constexpr uint32_t kCallDepthMax = 16384;

// One activation of a function, for the lanes that called it together.
struct Frame {
  struct Release {
    void operator()(uint8_t* memory) const;
  };
  std::unique_ptr<uint8_t, Release> memory;
  uint32_t capacity_bytes = 0;
  const CompiledFunction* function = nullptr;
  Frame* caller = nullptr;
  const Op* return_to = nullptr;
  const CallSite* site = nullptr;
  uint32_t lanes = 0;  // lanes that have not returned
  uint32_t depth = 0;
  uint64_t local_base = 0;  // of the function's .local variables in each lane's local memory
};

struct Fragment {
  enum class State : uint8_t { ready, at_barrier, at_exchange, at_cluster };
  const Op* pc = nullptr;  // at_exchange: the waiting instruction itself; at a barrier: the instruction behind it
  Frame* frame = nullptr;
  uint32_t mask = 0;
  State state = State::ready;
  uint32_t barrier = 0;
  const Op* barrier_op = nullptr;
  uint64_t ran_at = 0;
};

class Warp {
 public:
  enum class Outcome : uint8_t { exited, blocked, yielded, faulted };
  enum class Stop : uint8_t { none, change_fragment, yield, fault };

  Warp();
  ~Warp();
  Warp(const Warp&) = delete;
  Warp& operator=(const Warp&) = delete;

  // Begins the kernel for `lanes` (the existing ones). Precondition: the thread area is initialised.
  void start(Block& block, Executor& executor, uint32_t lanes, const CompiledFunction& kernel);
  Outcome run(Executor& executor);

  // Operands.
  template <class T>
  const T* in(Ref ref) const {
    return reinterpret_cast<const T*>(base_[ref.bits >> 29] + (ref.bits & Ref::kOffsetMax));
  }
  template <class T>
  T* out(Ref ref) {
    return reinterpret_cast<T*>(base_[0] + (ref.bits & Ref::kOffsetMax));
  }
  uint32_t predicate(Ref ref) const { return *in<uint32_t>(ref); }
  void set_predicate(Ref ref, uint32_t mask, uint32_t bits) {
    uint32_t* word = out<uint32_t>(ref);
    *word = (*word & ~mask) | (bits & mask);
  }
  // Returns whether an instruction without side effects may compute all 32 lanes.
  bool whole(uint32_t mask) const { return (mask | dont_care_) == kAllLanes; }

  // Control flow, for handlers.
  void branch(uint32_t taken, const Op* target);
  void branch_many(const Op* const targets[kLanes], uint32_t mask);
  void call(uint32_t mask, const CompiledFunction& callee, const CallSite& site);
  void leave(uint32_t mask);  // ret
  void exit(uint32_t mask);
  void wait_at_barrier(uint32_t mask, uint32_t barrier, const Op& op);
  void wait_at_cluster_barrier(uint32_t mask, const Op& op);
  // Puts aside the lanes of `mask`, which wait at `op` until the other lanes of their member mask arrive.
  void wait_for_exchange(uint32_t mask, const Op& op);
  void wake_exchange();
  // Makes the running fragment merge with fragments that wait where it continues.
  void meet() { set_reconverge(); }
  void fault(Fault kind, uint32_t lane, const Op& op, std::string what);

  const CompiledFunction& function() const { return *frame_->function; }
  uint8_t* local_memory();
  bool exited() const { return live_ == 0; }
  std::vector<Fragment>& fragments() { return fragments_; }

  // Frequently used state, which handlers access directly.
  uint8_t* base_[4] = {};
  const Op* pc_ = nullptr;
  const Op* reconverge_ = nullptr;  // where another fragment of this frame waits to be merged
  uint32_t active_ = 0;
  uint32_t dont_care_ = 0;  // lanes that do not exist or have exited
  uint32_t live_ = 0;
  uint32_t carry_ = 0;  // CC.CF of each lane
  Stop stop_ = Stop::none;
  uint32_t branches_left_ = 0;
  Frame* frame_ = nullptr;
  uint8_t* shared_ = nullptr;
  uint32_t shared_bytes_ = 0;
  uint64_t local_bytes_ = 0;  // of each lane
  Block* block_ = nullptr;
  Executor* executor_ = nullptr;
  RunningLaunch* launch_ = nullptr;
  uint32_t index_ = 0;  // index in its block
  static constexpr uint32_t kNoPhase = 0xffffffffu;
  uint32_t cluster_phase_[kLanes];  // the phase of the cluster's barrier in which the lane last arrived
  alignas(64) uint32_t thread_area_[static_cast<uint32_t>(ThreadSpecial::count_)][kLanes];

 private:
  void execute();
  bool pick();
  void resume(size_t fragment);
  void put_back();
  void set_reconverge();
  void after_jump();
  void merge_here();
  void switch_frame(Frame* frame);
  Frame* new_frame(const CompiledFunction& function);
  void release_frame(Frame* frame);

  std::vector<Fragment> fragments_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::vector<Frame*> free_frames_;
  std::unique_ptr<uint8_t, Frame::Release> local_;
  uint64_t local_capacity_ = 0;
  uint64_t turn_ = 0;
  bool rotated_ = false;
};

}  // namespace gpuwire::software_device
