// Conditions in a graph: conditional nodes, and the values that kernels set for them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <cuda.h>

namespace gpuwire::software_device {

// The object behind a CUgraphConditionalHandle. Kernels write it and the node behind them reads it, in the graph's
// order, so it needs no other synchronisation.
struct Condition {
  CUgraphConditionalHandle handle = 0;
  std::atomic<uint32_t> value{0};
  uint32_t initial = 0;
  bool assign_initial = false;  // at each launch
};

std::shared_ptr<Condition> make_condition(uint32_t initial, bool assign_initial);
// Returns null if no graph has the condition any more.
std::shared_ptr<Condition> find_condition(CUgraphConditionalHandle handle);

}  // namespace gpuwire::software_device
