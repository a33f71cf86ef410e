#include "server/software_device/execution/warp.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

#include "server/software_device/execution/running_launch.hpp"

namespace gpuwire::software_device {
namespace {

constexpr size_t kCacheLine = 64;

uint8_t* aligned_bytes(size_t bytes) {
  return static_cast<uint8_t*>(::operator new (bytes, std::align_val_t{kCacheLine}));
}

}  // namespace

void Frame::Release::operator()(uint8_t* memory) const { ::operator delete (memory, std::align_val_t{kCacheLine}); }

Warp::Warp() = default;
Warp::~Warp() = default;

void Warp::start(Block& block, Executor& executor, uint32_t lanes, const CompiledFunction& kernel) {
  block_ = &block;
  executor_ = &executor;
  launch_ = &block.launch();
  live_ = lanes;
  dont_care_ = ~lanes;
  carry_ = 0;
  std::fill_n(cluster_phase_, kLanes, kNoPhase);
  active_ = 0;
  shared_ = block.shared();
  shared_bytes_ = launch_->shared_bytes();
  local_bytes_ = launch_->local_bytes_per_thread();
  free_frames_.clear();
  for (auto& frame : frames_) free_frames_.push_back(frame.get());
  base_[static_cast<uint32_t>(Area::constants)] =
      reinterpret_cast<uint8_t*>(const_cast<uint64_t*>(launch_->program().constants_.data()));
  base_[static_cast<uint32_t>(Area::thread)] = reinterpret_cast<uint8_t*>(thread_area_);
  base_[static_cast<uint32_t>(Area::block)] = const_cast<uint8_t*>(block.block_area());
  fragments_.clear();
  rotated_ = false;
  Frame* frame = new_frame(kernel);
  frame->caller = nullptr;
  frame->lanes = lanes;
  frame->depth = 0;
  frame->local_base = 0;
  fragments_.push_back({kernel.ops.data(), frame, lanes});
}

Frame* Warp::new_frame(const CompiledFunction& function) {
  size_t best = free_frames_.size();
  for (size_t i = free_frames_.size(); i-- > 0;) {
    if (free_frames_[i]->capacity_bytes >= function.frame_bytes) {
      best = i;
      break;
    }
  }
  Frame* frame;
  if (best < free_frames_.size()) {
    frame = free_frames_[best];
    free_frames_.erase(free_frames_.begin() + static_cast<ptrdiff_t>(best));
  } else {
    frames_.push_back(std::make_unique<Frame>());
    frame = frames_.back().get();
    frame->capacity_bytes = std::max<uint32_t>(function.frame_bytes, 256);
    frame->memory.reset(aligned_bytes(frame->capacity_bytes));
    std::memset(frame->memory.get(), 0, frame->capacity_bytes);
  }
  frame->function = &function;
  return frame;
}

void Warp::release_frame(Frame* frame) { free_frames_.push_back(frame); }

void Warp::switch_frame(Frame* frame) {
  frame_ = frame;
  base_[static_cast<uint32_t>(Area::frame)] = frame->memory.get();
}

uint8_t* Warp::local_memory() {
  uint64_t bytes = local_bytes_ * kLanes;
  if (local_capacity_ < bytes) {
    local_.reset(aligned_bytes(bytes));
    local_capacity_ = bytes;
  }
  return local_.get();
}

Warp::Outcome Warp::run(Executor& executor) {
  executor_ = &executor;
  branches_left_ = launch_->launch().cooperative ? kBranchesPerCooperativeTurn : kBranchesPerTurn;
  while (pick()) {
    stop_ = Stop::none;
    execute();
    if (stop_ == Stop::fault) return Outcome::faulted;
    if (stop_ == Stop::yield) {
      put_back();
      rotated_ = true;
      return Outcome::yielded;
    }
    rotated_ = false;
  }
  return live_ == 0 ? Outcome::exited : Outcome::blocked;
}

void Warp::execute() {
  while (stop_ == Stop::none) {
    const Op& op = *pc_++;
    uint32_t mask = active_;
    if (op.guard != kNoGuard) {
      uint32_t bits = *reinterpret_cast<const uint32_t*>(base_[0] + (op.guard & ~kGuardNegated));
      mask &= (op.guard & kGuardNegated) ? ~bits : bits;
    }
    if (mask != 0) op.run(*this, op, mask);
    if (pc_ == reconverge_ && stop_ == Stop::none) merge_here();
  }
}

void Warp::put_back() {
  if (active_ == 0) return;
  fragments_.push_back({pc_, frame_, active_});
  fragments_.back().ran_at = ++turn_;
  active_ = 0;
}

// Chooses the next fragment and merges into it the fragments at the same instruction. Returns false if none is ready.
bool Warp::pick() {
  size_t best = fragments_.size();
  auto better = [&](const Fragment& a, const Fragment& b) {
    if (rotated_) return a.ran_at < b.ran_at;
    if (a.frame->depth != b.frame->depth) return a.frame->depth > b.frame->depth;
    return a.pc < b.pc;
  };
  for (size_t i = 0; i < fragments_.size(); ++i) {
    if (fragments_[i].state != Fragment::State::ready) continue;
    if (best == fragments_.size() || better(fragments_[i], fragments_[best])) best = i;
  }
  if (best == fragments_.size()) return false;
  resume(best);
  return true;
}

void Warp::resume(size_t fragment) {
  Fragment chosen = fragments_[fragment];
  fragments_.erase(fragments_.begin() + static_cast<ptrdiff_t>(fragment));
  pc_ = chosen.pc;
  active_ = chosen.mask;
  switch_frame(chosen.frame);
  merge_here();
}

void Warp::merge_here() {
  for (size_t i = 0; i < fragments_.size();) {
    const Fragment& other = fragments_[i];
    if (other.state == Fragment::State::ready && other.pc == pc_ && other.frame == frame_) {
      active_ |= other.mask;
      fragments_.erase(fragments_.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  set_reconverge();
}

void Warp::set_reconverge() {
  reconverge_ = nullptr;
  for (const Fragment& other : fragments_) {
    if (other.state != Fragment::State::ready || other.frame != frame_ || other.pc <= pc_) continue;
    if (reconverge_ == nullptr || other.pc < reconverge_) reconverge_ = other.pc;
  }
}

// The running fragment has jumped, so another fragment may be the first now.
void Warp::after_jump() {
  if (fragments_.empty()) {
    reconverge_ = nullptr;
    return;
  }
  if (!rotated_) {
    for (const Fragment& other : fragments_) {
      if (other.state != Fragment::State::ready) continue;
      bool first = other.frame->depth != frame_->depth ? other.frame->depth > frame_->depth : other.pc < pc_;
      if (!first) continue;
      fragments_.push_back({pc_, frame_, active_});
      fragments_.back().ran_at = ++turn_;
      pick();
      return;
    }
  }
  merge_here();
}

void Warp::branch(uint32_t taken, const Op* target) {
  if (branches_left_-- == 0) {
    branches_left_ = 0;
    stop_ = Stop::yield;
  }
  if (taken == active_) {
    pc_ = target;
    if (!fragments_.empty()) after_jump();
    return;
  }
  uint32_t fallen = active_ & ~taken;
  fragments_.push_back({target, frame_, taken});
  fragments_.back().ran_at = ++turn_;
  active_ = fallen;
  after_jump();
}

void Warp::branch_many(const Op* const targets[kLanes], uint32_t mask) {
  uint32_t rest = mask;
  uint32_t staying = active_ & ~mask;
  while (rest != 0) {
    const Op* target = targets[std::countr_zero(rest)];
    uint32_t group = 0;
    for (uint32_t left = rest; left != 0; left &= left - 1) {
      unsigned lane = static_cast<unsigned>(std::countr_zero(left));
      if (targets[lane] == target) group |= 1u << lane;
    }
    rest &= ~group;
    fragments_.push_back({target, frame_, group});
    fragments_.back().ran_at = ++turn_;
  }
  active_ = staying;
  if (active_ != 0) {
    after_jump();
  } else {
    pick();
  }
}

void Warp::call(uint32_t mask, const CompiledFunction& callee, const CallSite& site) {
  if (frame_->depth + 1 >= launch_->call_depth_max() ||
      frame_->local_base + frame_->function->local_bytes + callee.local_bytes > local_bytes_) {
    return fault(Fault::stack_overflow, static_cast<uint32_t>(std::countr_zero(mask)), pc_[-1],
                 "stack overflow in a call of " + callee.name);
  }
  Frame* caller = frame_;
  Frame* frame = new_frame(callee);
  frame->caller = caller;
  frame->return_to = pc_;
  frame->site = &site;
  frame->lanes = mask;
  frame->depth = caller->depth + 1;
  frame->local_base = caller->local_base + caller->function->local_bytes;
  for (size_t i = 0; i < site.arguments.size(); ++i) {
    const FrameSlot& to = callee.parameters[i];
    std::memcpy(frame->memory.get() + to.ref.offset(), in<uint8_t>(site.arguments[i].ref), size_t{to.bytes} * kLanes);
  }
  if (branches_left_-- == 0) {
    branches_left_ = 0;
    stop_ = Stop::yield;
  }
  if (mask != active_) {
    fragments_.push_back({pc_, frame_, active_ & ~mask});
    fragments_.back().ran_at = ++turn_;
  }
  active_ = mask;
  switch_frame(frame);
  pc_ = callee.ops.data();
  if (fragments_.empty()) reconverge_ = nullptr;
  else after_jump();
}

void Warp::leave(uint32_t mask) {
  Frame* frame = frame_;
  if (frame->caller == nullptr) return exit(mask);
  uint8_t* target = frame->caller->memory.get();
  for (size_t i = 0; i < frame->site->results.size(); ++i) {
    const FrameSlot& to = frame->site->results[i];
    const uint8_t* from = in<uint8_t>(frame->function->results[i].ref);
    for (uint32_t left = mask; left != 0; left &= left - 1) {
      size_t lane = static_cast<size_t>(std::countr_zero(left));
      std::memcpy(target + to.ref.offset() + lane * to.bytes, from + lane * to.bytes, to.bytes);
    }
  }
  uint32_t staying = active_ & ~mask;
  if (staying != 0) {
    fragments_.push_back({pc_, frame, staying});
    fragments_.back().ran_at = ++turn_;
  }
  frame->lanes &= ~mask;
  active_ = mask;
  pc_ = frame->return_to;
  switch_frame(frame->caller);
  if (frame->lanes == 0) release_frame(frame);
  after_jump();
}

void Warp::exit(uint32_t mask) {
  live_ &= ~mask;
  dont_care_ |= mask;
  active_ &= ~mask;
  for (Frame* frame = frame_; frame != nullptr;) {
    Frame* caller = frame->caller;
    frame->lanes &= ~mask;
    if (frame->lanes == 0 && caller != nullptr) release_frame(frame);
    frame = caller;
  }
  if (active_ == 0) stop_ = Stop::change_fragment;
  wake_exchange();
  block_->threads_exited(*this, mask);
  if (active_ != 0) set_reconverge();
}

void Warp::wait_at_barrier(uint32_t mask, uint32_t barrier, const Op& op) {
  Fragment waiting{pc_, frame_, mask, Fragment::State::at_barrier, barrier, &op};
  waiting.ran_at = ++turn_;
  fragments_.push_back(waiting);
  active_ &= ~mask;
  if (active_ == 0) stop_ = Stop::change_fragment;
}

void Warp::wait_at_cluster_barrier(uint32_t mask, const Op& op) {
  Fragment waiting{pc_, frame_, mask, Fragment::State::at_cluster, 0, &op};
  waiting.ran_at = ++turn_;
  fragments_.push_back(waiting);
  active_ &= ~mask;
  if (active_ == 0) stop_ = Stop::change_fragment;
}

void Warp::wait_for_exchange(uint32_t mask, const Op& op) {
  Fragment waiting{&op, frame_, mask, Fragment::State::at_exchange};
  waiting.ran_at = ++turn_;
  fragments_.push_back(waiting);
  active_ &= ~mask;
  if (active_ == 0) stop_ = Stop::change_fragment;
}

void Warp::wake_exchange() {
  for (Fragment& other : fragments_) {
    if (other.state == Fragment::State::at_exchange) other.state = Fragment::State::ready;
  }
}

void Warp::fault(Fault kind, uint32_t lane, const Op& op, std::string what) {
  const Dim3& block = block_->index();
  auto triple = [](uint32_t x, uint32_t y, uint32_t z) {
    return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
  };
  what += " in kernel " + launch_->function().name;
  if (frame_->function != &launch_->function()) what += ", function " + frame_->function->name;
  what += ", ptx:" + std::to_string(op.line) + ", block " + triple(block.x, block.y, block.z) + ", thread " +
          triple(thread_area_[static_cast<uint32_t>(ThreadSpecial::tid_x)][lane],
                 thread_area_[static_cast<uint32_t>(ThreadSpecial::tid_y)][lane],
                 thread_area_[static_cast<uint32_t>(ThreadSpecial::tid_z)][lane]);
  launch_->fault(kind, std::move(what));
  stop_ = Stop::fault;
}

}  // namespace gpuwire::software_device
