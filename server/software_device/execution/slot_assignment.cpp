#include "server/software_device/execution/slot_assignment.hpp"

#include <algorithm>
#include <bit>

#include "server/software_device/execution/handlers.hpp"

namespace gpuwire::software_device {
namespace {

// If the liveness sets need more bits than this, every register that crosses blocks counts as alive throughout.
constexpr uint64_t kLivenessBitsMax = uint64_t{1} << 30;
constexpr uint32_t kFrameAlignment = 64;

bool is_virtual(Ref ref) { return ref.area() == Area::virtual_register; }

uint32_t slot_bytes(uint32_t value_bytes) { return value_bytes == 0 ? 4 : value_bytes * kLanes; }

}  // namespace

SlotAssignment::SlotAssignment(Lowering& lowering) : lowering_(lowering), function_(lowering.target_) {}

void SlotAssignment::run() {
  find_blocks();
  find_global_registers();
  solve_liveness();
  make_intervals();
  assign();
  patch();
}

template <class F>
void SlotAssignment::each_use(uint32_t index, F&& use) const {
  const Op& op = function_.ops[index];
  for (unsigned i = op.definitions; i < kRefsPerOp; ++i) {
    if (is_virtual(op.ref[i])) use(op.ref[i].offset());
  }
  if (op.guard != kNoGuard) {
    use(op.guard & ~kGuardNegated);
    // Lanes whose guard is false keep the old value.
    for (unsigned i = 0; i < op.definitions; ++i) {
      if (is_virtual(op.ref[i])) use(op.ref[i].offset());
    }
  }
  if (lowering_.branches_[index] == Lowering::kCallSite) {
    for (const FrameSlot& argument : function_.calls[op.target].arguments) {
      if (is_virtual(argument.ref)) use(argument.ref.offset());
    }
    if (op.guard == kNoGuard) return;
    for (const FrameSlot& result : function_.calls[op.target].results) {
      if (is_virtual(result.ref)) use(result.ref.offset());
    }
  }
}

template <class F>
void SlotAssignment::each_definition(uint32_t index, F&& define) const {
  const Op& op = function_.ops[index];
  for (unsigned i = 0; i < op.definitions; ++i) {
    if (is_virtual(op.ref[i])) define(op.ref[i].offset());
  }
  if (lowering_.branches_[index] == Lowering::kCallSite) {
    for (const FrameSlot& result : function_.calls[op.target].results) {
      if (is_virtual(result.ref)) define(result.ref.offset());
    }
  }
}

void SlotAssignment::find_blocks() {
  const std::vector<Op>& ops = function_.ops;
  std::vector<uint8_t> leader(ops.size() + 1);
  leader[0] = 1;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (lowering_.branches_[i] == Lowering::kBranchTarget) leader[ops[i].target] = leader[i + 1] = 1;
    if (handles_jump_without_return(ops[i].run)) leader[i + 1] = 1;
    if (handles_table_branch(ops[i].run)) leader[i + 1] = 1;
  }
  for (const BranchTable& table : function_.tables) {
    for (uint32_t target : table.targets) leader[target] = 1;
  }
  block_of_.resize(ops.size());
  for (uint32_t i = 0; i < ops.size(); ++i) {
    if (leader[i]) blocks_.push_back({i, i, {}});
    blocks_.back().end = i + 1;
    block_of_[i] = static_cast<uint32_t>(blocks_.size() - 1);
  }
  for (uint32_t b = 0; b < blocks_.size(); ++b) {
    uint32_t last = blocks_[b].end - 1;
    const Op& op = ops[last];
    bool falls = op.guard != kNoGuard || !handles_jump_without_return(op.run);
    if (falls && b + 1 < blocks_.size()) blocks_[b].successors.push_back(b + 1);
    if (lowering_.branches_[last] == Lowering::kBranchTarget) blocks_[b].successors.push_back(block_of_[op.target]);
    if (handles_table_branch(op.run)) {
      for (uint32_t target : function_.tables[op.target].targets) blocks_[b].successors.push_back(block_of_[target]);
    }
  }
}

void SlotAssignment::find_global_registers() {
  size_t count = lowering_.registers_.size();
  std::vector<uint32_t> seen_in(count, kLocal);
  global_number_.assign(count, kLocal);
  auto see = [&](uint32_t reg, uint32_t block) {
    if (seen_in[reg] == kLocal) seen_in[reg] = block;
    if (seen_in[reg] != block && global_number_[reg] == kLocal) {
      global_number_[reg] = static_cast<uint32_t>(global_registers_.size());
      global_registers_.push_back(reg);
    }
  };
  for (uint32_t i = 0; i < function_.ops.size(); ++i) {
    each_use(i, [&](uint32_t reg) { see(reg, block_of_[i]); });
    each_definition(i, [&](uint32_t reg) { see(reg, block_of_[i]); });
  }
  // A register that is read before it is written in a loop of one block is alive across that block's back edge.
  std::vector<uint8_t> written(count);
  for (const BasicBlock& block : blocks_) {
    std::vector<uint32_t> here;
    for (uint32_t i = block.begin; i < block.end; ++i) {
      each_use(i, [&](uint32_t reg) {
        if (written[reg] || global_number_[reg] != kLocal) return;
        global_number_[reg] = static_cast<uint32_t>(global_registers_.size());
        global_registers_.push_back(reg);
      });
      each_definition(i, [&](uint32_t reg) {
        written[reg] = 1;
        here.push_back(reg);
      });
    }
    for (uint32_t reg : here) written[reg] = 0;
  }
}

void SlotAssignment::solve_liveness() {
  size_t words = (global_registers_.size() + 63) / 64;
  if (uint64_t{words} * 64 * 3 * blocks_.size() > kLivenessBitsMax) return;
  live_in_.assign(blocks_.size(), std::vector<uint64_t>(words));
  std::vector<std::vector<uint64_t>> used(blocks_.size(), std::vector<uint64_t>(words));
  std::vector<std::vector<uint64_t>> defined = used;
  for (uint32_t b = 0; b < blocks_.size(); ++b) {
    for (uint32_t i = blocks_[b].begin; i < blocks_[b].end; ++i) {
      each_use(i, [&](uint32_t reg) {
        uint32_t g = global_number_[reg];
        if (g != kLocal && !(defined[b][g / 64] >> (g % 64) & 1)) used[b][g / 64] |= uint64_t{1} << (g % 64);
      });
      each_definition(i, [&](uint32_t reg) {
        uint32_t g = global_number_[reg];
        if (g != kLocal) defined[b][g / 64] |= uint64_t{1} << (g % 64);
      });
    }
  }
  std::vector<std::vector<uint32_t>> predecessors(blocks_.size());
  for (uint32_t b = 0; b < blocks_.size(); ++b) {
    for (uint32_t next : blocks_[b].successors) predecessors[next].push_back(b);
  }
  std::vector<uint32_t> work;
  std::vector<uint8_t> queued(blocks_.size(), 1);
  for (uint32_t b = 0; b < blocks_.size(); ++b) work.push_back(b);
  while (!work.empty()) {
    uint32_t b = work.back();
    work.pop_back();
    queued[b] = 0;
    bool changed = false;
    for (size_t w = 0; w < words; ++w) {
      uint64_t out = 0;
      for (uint32_t next : blocks_[b].successors) out |= live_in_[next][w];
      uint64_t in = used[b][w] | (out & ~defined[b][w]);
      changed |= in != live_in_[b][w];
      live_in_[b][w] = in;
    }
    if (!changed) continue;
    for (uint32_t before : predecessors[b]) {
      if (!queued[before]) work.push_back(before);
      queued[before] = 1;
    }
  }
}

// Positions: op i reads at 2i and writes at 2i + 1, so that a result may take the place of a source that dies there.
void SlotAssignment::make_intervals() {
  intervals_.resize(lowering_.registers_.size());
  uint32_t last = static_cast<uint32_t>(function_.ops.size()) * 2;
  for (uint32_t i = 0; i < function_.ops.size(); ++i) {
    bool apart = lowering_.apart_[i] != 0;
    each_use(i, [&](uint32_t reg) { intervals_[reg].cover(apart ? 2 * i + 1 : 2 * i); });
    each_definition(i, [&](uint32_t reg) {
      intervals_[reg].cover(2 * i + 1);
      if (apart) intervals_[reg].cover(2 * i);
    });
  }
  for (uint32_t reg = 0; reg < intervals_.size(); ++reg) {
    if (lowering_.registers_[reg].formal) intervals_[reg].cover(0);
    if (lowering_.registers_[reg].pinned) intervals_[reg].cover(last);
  }
  if (live_in_.empty()) {
    for (uint32_t reg : global_registers_) {
      intervals_[reg].cover(0);
      intervals_[reg].cover(last);
    }
    return;
  }
  for (uint32_t b = 0; b < blocks_.size(); ++b) {
    for (size_t w = 0; w < live_in_[b].size(); ++w) {
      uint64_t out = 0;
      for (uint32_t next : blocks_[b].successors) out |= live_in_[next][w];
      for (uint64_t bits = live_in_[b][w]; bits != 0; bits &= bits - 1) {
        intervals_[global_registers_[w * 64 + static_cast<size_t>(std::countr_zero(bits))]].cover(2 * blocks_[b].begin);
      }
      for (uint64_t bits = out; bits != 0; bits &= bits - 1) {
        intervals_[global_registers_[w * 64 + static_cast<size_t>(std::countr_zero(bits))]].cover(2 * blocks_[b].end -
                                                                                                  1);
      }
    }
  }
}

void SlotAssignment::assign() {
  std::vector<uint32_t> order;
  for (uint32_t reg = 0; reg < intervals_.size(); ++reg) {
    if (intervals_[reg].used()) order.push_back(reg);
  }
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return intervals_[a].begin < intervals_[b].begin; });
  struct Busy {
    uint32_t end, offset;
    bool operator<(const Busy& other) const { return end > other.end; }  // the earliest end is at the top of the heap
  };
  std::vector<Busy> busy[9];
  std::vector<uint32_t> free[9];
  uint32_t top = (lowering_.fixed_bytes_ + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
  offsets_.assign(intervals_.size(), 0);
  for (uint32_t reg : order) {
    uint32_t size_class = lowering_.registers_[reg].bytes;
    std::vector<Busy>& heap = busy[size_class];
    while (!heap.empty() && heap.front().end < intervals_[reg].begin) {
      free[size_class].push_back(heap.front().offset);
      std::pop_heap(heap.begin(), heap.end());
      heap.pop_back();
    }
    uint32_t offset;
    if (free[size_class].empty()) {
      offset = top;
      uint32_t bytes = slot_bytes(size_class);
      top += bytes;
      if (size_class == 0) {
        for (uint32_t more = offset + bytes; more < offset + kFrameAlignment; more += bytes) free[0].push_back(more);
        top = offset + kFrameAlignment;
      }
      top = (top + 31) / 32 * 32;
      if (top > Ref::kOffsetMax / 2) {
        lowering_.invalid("the function needs too many registers");
        top = 0;
      }
    } else {
      offset = free[size_class].back();
      free[size_class].pop_back();
    }
    offsets_[reg] = offset;
    heap.push_back({intervals_[reg].end, offset});
    std::push_heap(heap.begin(), heap.end());
  }
  function_.frame_bytes = (top + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment + kFrameAlignment;
}

void SlotAssignment::patch() {
  auto place = [&](Ref& ref) {
    if (is_virtual(ref)) ref = Ref(Area::frame, offsets_[ref.offset()]);
  };
  for (Op& op : function_.ops) {
    for (Ref& ref : op.ref) place(ref);
    if (op.guard != kNoGuard) op.guard = offsets_[op.guard & ~kGuardNegated] | (op.guard & kGuardNegated);
  }
  for (CallSite& site : function_.calls) {
    for (FrameSlot& slot : site.arguments) place(slot.ref);
    for (FrameSlot& slot : site.results) place(slot.ref);
  }
  for (FrameSlot& slot : function_.parameters) place(slot.ref);
  for (FrameSlot& slot : function_.results) place(slot.ref);
}

}  // namespace gpuwire::software_device
