// Memory of graphs with allocation nodes: each device's is charged what the driver has reserved for all graphs of the
// process.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace gpuwire::server {

struct LedgerParts;

// Any thread. Costs programs without allocation nodes one load per launch.
class GraphCharges {
 public:
  explicit GraphCharges(LedgerParts& parts);

  // By device: how many bytes.
  using Needs = std::map<CUdevice, uint64_t>;

  // Makes a call that may take so much now.
  template <class Call>
  CUresult within(const Needs& needs, Call&& call) {
    any_.store(true, std::memory_order_relaxed);
    std::lock_guard lock(mutex_);
    Needs reserved;
    for (const auto& [device, bytes] : needs) {
      if (reserve(device, bytes, reserved[device])) continue;
      reserved.erase(device);
      settle(reserved);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = call();
    settle(reserved);
    return result;
  }
  // Makes a call that launches or uploads an executable graph.
  template <class Call>
  CUresult run(CUgraphExec exec, Call&& call) {
    if (!any()) return call();
    return within(needs(exec), call);
  }
  void instantiated(CUgraphExec exec, CUgraph graph);
  void destroyed(CUgraphExec exec);
  // Some graph memory may have been given back.
  void settle();
  // Has the process ever made an allocation node? Relaxed: only the thread that makes graphs depends on it.
  bool any() const { return any_.load(std::memory_order_relaxed); }

 private:
  Needs needs(CUgraphExec exec);
  void add_needs(CUgraph graph, unsigned depth, Needs& needs) const;
  uint64_t attribute(CUdevice device, CUgraphMem_attribute attribute) const;
  // With the mutex.
  bool reserve(CUdevice device, uint64_t bytes, uint64_t& reserved);
  void settle(CUdevice device, uint64_t reserved);
  void settle(const Needs& reserved);

  LedgerParts& parts_;
  std::atomic<bool> any_{false};
  std::mutex mutex_;               // over a call that may take memory, and its charge; outside of the ledger's
  std::vector<uint64_t> charged_;  // by device
  std::mutex needs_mutex_;         // a leaf
  std::unordered_map<CUgraphExec, Needs> needs_;  // of those with allocation nodes
};

}  // namespace gpuwire::server
