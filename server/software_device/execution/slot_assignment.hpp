// Assigns virtual registers to places in the frame. Registers that are never alive together share a place, which keeps
// a warp's registers in the cache, because nvcc assigns a new register to every value.
#pragma once

#include <cstdint>
#include <vector>

#include "server/software_device/execution/lowering.hpp"

namespace gpuwire::software_device {

class SlotAssignment {
 public:
  explicit SlotAssignment(Lowering& lowering);
  void run();

 private:
  struct Interval {
    uint32_t begin = 0xffffffff, end = 0;
    bool used() const { return begin <= end; }
    void cover(uint32_t position) {
      if (position < begin) begin = position;
      if (position > end) end = position;
    }
  };
  struct BasicBlock {
    uint32_t begin, end;  // ops
    std::vector<uint32_t> successors;
  };

  void find_blocks();
  void find_global_registers();
  void solve_liveness();
  void make_intervals();
  void assign();
  void patch();
  template <class F>
  void each_use(uint32_t op, F&& use) const;
  template <class F>
  void each_definition(uint32_t op, F&& define) const;

  Lowering& lowering_;
  CompiledFunction& function_;
  std::vector<BasicBlock> blocks_;
  std::vector<uint32_t> block_of_;
  std::vector<uint32_t> global_number_;  // kLocal for registers that are alive within one block only
  std::vector<uint32_t> global_registers_;
  std::vector<std::vector<uint64_t>> live_in_;
  std::vector<Interval> intervals_;
  std::vector<uint32_t> offsets_;
  static constexpr uint32_t kLocal = 0xffffffff;
};

}  // namespace gpuwire::software_device
