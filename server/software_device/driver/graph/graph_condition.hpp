// Conditions in a graph: conditional nodes, and the values that kernels set for them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <cuda.h>

namespace gpuwire::software_device {

// Behind a CUgraphConditionalHandle. Written by kernels and read by the node behind them: the order of the graph is
// order enough.
struct Condition {
  CUgraphConditionalHandle handle = 0;
  std::atomic<uint32_t> value{0};
  uint32_t initial = 0;
  bool assign_initial = false;  // at each launch
};

std::shared_ptr<Condition> make_condition(uint32_t initial, bool assign_initial);
// Null: no graph has it any more.
std::shared_ptr<Condition> find_condition(CUgraphConditionalHandle handle);

}  // namespace gpuwire::software_device
