// Charges of graphs: the host memory of graphs and their instances, the device memory of instances, and the memory of
// their allocation nodes.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "protocol/threads/mutex.hpp"
#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/graph_bytes.hpp"

namespace gpuwire::server {

// Memory of graphs with allocation nodes: each device is charged the driver's reservation for all graphs of the
// process. Any thread. Costs programs without allocation nodes one load per launch.
class GraphCharges {
 public:
  explicit GraphCharges(LedgerParts& parts);

  // Bytes by device.
  using Needs = std::map<CUdevice, uint64_t>;

  // Makes a call that may take this much memory.
  template <class Call>
  CUresult within(const Needs& needs, Call&& call) {
    any_.store(true, std::memory_order_relaxed);
    MutexLock lock(mutex_);
    std::optional<CUresult> made;
    return within(needs.begin(), needs.end(), call, made);
  }
  // Makes a call that launches or uploads an executable graph.
  template <class Call>
  CUresult run(CUgraphExec exec, Call&& call) {
    if (!any()) return call();
    return within(needs(exec), call);
  }
  // Releases the charge of graph memory that the driver has released.
  void settle();
  // Whether the process has ever made an allocation node. Relaxed: only the thread that makes graphs depends on it.
  bool any() const { return any_.load(std::memory_order_relaxed); }

  // --- graphs: nodes and edges take memory of this machine --------------------------------------------------------

  // The bytes of a new node's edges.
  static uint64_t edges_bytes(size_t count) { return count * kGraphEdgeHostBytes; }
  uint64_t kernel_bytes(CUfunction function, CUkernel kernel) const {
    return reader().kernel_host_bytes(function, kernel);
  }
  uint64_t node_bytes(CUgraphNode node) const { return reader().node_host_bytes(node); }
  uint64_t graph_bytes(CUgraph graph) const { return reader().read(graph).host; }
  // Makes a call that makes nodes or edges.
  template <class Call>
  CUresult make(uint64_t bytes, Call&& call) {
    return take(
        parts_.ledger, kHostColumn, bytes, call, [&] { return bytes; }, [&](uint64_t made) { made_.fetch_add(made); },
        [] {});
  }
  // Makes a call that replaces a kernel node's kernel.
  template <class Call>
  CUresult change(CUgraphNode node, CUfunction function, CUkernel kernel, Call&& call) {
    const uint64_t before = reader().kernel_host_bytes(node), after = kernel_bytes(function, kernel);
    CUresult result = make(growth(after, before), call);
    if (result == CUDA_SUCCESS) unmade(growth(before, after));
    return result;
  }
  // Makes a call that destroys nodes or edges of this size.
  template <class Call>
  CUresult unmake(uint64_t bytes, Call&& call) {
    CUresult result = call();
    if (result == CUDA_SUCCESS) unmade(bytes);
    return result;
  }
  void unmade(uint64_t bytes);
  CUresult destroy(CUgraph graph);
  // Ends a capture by `end`, which returns the graph, and charges the graph's memory.
  template <class End>
  CUresult captured(CUstream stream, CUgraph* graph, End&& end) {
    const auto [into_given, before] = taken_from_capture(stream);
    CUresult ended = CUDA_SUCCESS;
    CUresult result = take(
        parts_.ledger, kHostColumn, 0, [&] { return ended = end(); },
        [&, before = before] { return *graph ? growth(graph_bytes(*graph), before) : 0; },
        [&](uint64_t made) { made_.fetch_add(made); },
        [&, into_given = into_given] {
          // If the capture went into an existing graph of the program, its new nodes stay.
          if (!into_given) parts_.driver.cuGraphDestroy(*graph);
        });
    // A failed capture destroys the graph that it was captured into.
    if (ended != CUDA_SUCCESS && into_given) unmade(before);
    return result;
  }
  void capturing(CUstream stream, CUgraph into);
  void has_bodies(CUgraphNode node, std::vector<CUgraph> bodies);

  // --- instances --------------------------------------------------------------------------------------------------

  template <class Make>
  CUresult instantiate(CUgraphExec* exec, CUgraph graph, Make&& make) {
    GraphBytes bytes = reader().read(graph);
    // The software device takes a node's memory when the node is made, and nothing for an instance.
    if (parts_.software) bytes.allocations.clear(), bytes.exec_device.clear();
    MutexLock lock(execs_mutex_);
    std::map<CUcontext, uint64_t> device;
    if (CUresult error = place(bytes, device)) return error;
    // take() calls these with the lock held.
    CUresult result = take(
        parts_.ledger, kHostColumn, bytes.exec_host,
        [&]() WITHOUT_LOCK_CHECK { return on_devices(device.begin(), device.end(), make); },
        [&] { return bytes.exec_host; },
        [&](uint64_t host) WITHOUT_LOCK_CHECK {
          execs_[*exec] = {host, device, std::move(bytes.allocations)};
        },
        [] {});
    return result;
  }
  CUresult destroy(CUgraphExec exec);
  // Releases the charges of instances in a context that has ended.
  void drop(CUcontext context);

 private:
  struct Exec {
    uint64_t host = 0;
    std::map<CUcontext, uint64_t> device;
    Needs allocations;
  };
  // The driver keeps an instance's memory on a device, for the next instance (measured on an H200).
  struct Share {
    uint32_t column = 0;
    // By the existing instances.
    uint64_t needed = 0;
    // The maximum of `needed`.
    uint64_t charged = 0;
  };
  using Devices = std::map<CUcontext, uint64_t>;

  static uint64_t growth(uint64_t now, uint64_t before) { return now > before ? now - before : 0; }
  GraphReader reader() const {
    return {parts_.driver, [this](CUgraphNode node) { return bodies(node); }};
  }
  std::vector<CUgraph> bodies(CUgraphNode node) const;
  std::pair<bool, uint64_t> taken_from_capture(CUstream stream);
  // Assigns the bytes to the contexts that own memory, and sets their columns.
  CUresult place(const GraphBytes& bytes, Devices& device) REQUIRES(execs_mutex_);
  template <class Make>
  CUresult on_devices(Devices::const_iterator at, Devices::const_iterator end, Make&& make) REQUIRES(execs_mutex_) {
    if (at == end) return make();
    Share& share = shares_.at(at->first);
    const uint64_t more = growth(share.needed + at->second, share.charged);
    return take(
        parts_.ledger, share.column, more, [&]() WITHOUT_LOCK_CHECK { return on_devices(std::next(at), end, make); },
        [&] { return more; },
        [&](uint64_t bytes) {
          share.charged += bytes;
          share.needed += at->second;
        },
        [] {});
  }
  Needs needs(CUgraphExec exec);
  uint64_t attribute(CUdevice device, CUgraphMem_attribute attribute) const;
  // Makes the call after the charges of the devices from `at` on. `made` gets the call's result.
  template <class Call>
  CUresult within(Needs::const_iterator at, Needs::const_iterator end, Call& call, std::optional<CUresult>& made)
      REQUIRES(mutex_) {
    if (at == end) return *(made = call());
    const CUdevice device = at->first;
    auto column = parts_.column(device);
    if (!column) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t& charged = charged_[size_t(device)];
    for (bool trimmed : {false, true}) {
      if (trimmed && parts_.driver.cuDeviceGraphMemTrim) parts_.driver.cuDeviceGraphMemTrim(device);
      settle(device);
      const uint64_t most = missing(device, at->second);
      auto keep = [&](uint64_t bytes) { charged += bytes; };
      // take() calls these with the lock held.
      CUresult result = take(
          parts_.ledger, *column, most, [&]() WITHOUT_LOCK_CHECK { return within(std::next(at), end, call, made); },
          [&]() WITHOUT_LOCK_CHECK { return grown(device); }, keep, [] {});
      if (!made) continue;
      // Launched work cannot be undone: at least the bound is charged, and the excess later, when there is room.
      if (result != *made)
        take(
            parts_.ledger, *column, most, [] { return CUDA_SUCCESS; },
            [&]() WITHOUT_LOCK_CHECK { return std::min(grown(device), most); }, keep, [] {});
      return *made;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // Returns how much of the driver's reservation on the device is not charged.
  uint64_t grown(CUdevice device) const REQUIRES(mutex_);
  // Returns how much of `bytes` exceeds the device's charged and unused memory.
  uint64_t missing(CUdevice device, uint64_t bytes) const REQUIRES(mutex_);
  void settle(CUdevice device) REQUIRES(mutex_);

  LedgerParts& parts_;
  std::atomic<bool> any_{false};
  // Held over a call that may take memory, and its charge; taken before the ledger's.
  Mutex mutex_;
  // The charged bytes of each device.
  std::vector<uint64_t> charged_ GUARDED_BY(mutex_);
  // The charge for graphs; no other data depends on it.
  std::atomic<uint64_t> made_{0};
  // Held over a call that instantiates, and its charge; taken before the ledger's.
  Mutex execs_mutex_;
  std::unordered_map<CUgraphExec, Exec> execs_ GUARDED_BY(execs_mutex_);
  std::map<CUcontext, Share> shares_ GUARDED_BY(execs_mutex_);
  // A leaf.
  mutable Mutex graphs_mutex_;
  // The bodies of conditional nodes.
  std::unordered_map<CUgraphNode, std::vector<CUgraph>> bodies_ GUARDED_BY(graphs_mutex_);
  // captures into existing graphs, with the bytes of the graph before
  std::unordered_map<CUstream, uint64_t> captures_into_ GUARDED_BY(graphs_mutex_);
};

}  // namespace gpuwire::server
