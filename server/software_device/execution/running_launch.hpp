// A launch in progress, which the threads that execute its blocks share, and the own state of each such thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "server/software_device/execution/cluster.hpp"
#include "server/software_device/execution/engine.hpp"
#include "server/software_device/execution/program.hpp"

namespace gpuwire::software_device {

class RunningLaunch {
 public:
  explicit RunningLaunch(const Launch& launch);

  const Launch& launch() const { return launch_; }
  const CompiledProgram& program() const { return program_; }
  const CompiledKernel& kernel() const { return kernel_; }
  const CompiledFunction& function() const { return function_; }
  uint64_t symbol_value(uint32_t symbol) const { return symbol_values_[symbol]; }
  uint32_t shared_bytes() const { return shared_bytes_; }
  uint64_t local_bytes_per_thread() const { return local_bytes_per_thread_; }
  uint32_t call_depth_max() const { return call_depth_max_; }
  uint64_t workspace() const { return reinterpret_cast<uint64_t>(workspace_); }
  std::span<const uint8_t> parameters() const { return parameters_; }
  uint64_t grid_id() const { return grid_id_; }
  bool workspace_holds(uint64_t address, uint64_t bytes) const {
    return address >= workspace() && address + bytes <= workspace() + sizeof workspace_ && launch_.cooperative;
  }
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  void fault(Fault kind, std::string message);  // the first fault is reported
  bool poll_cancelled();

  uint64_t cluster_count = 0;

 private:
  friend class EngineImplementation;
  const Launch& launch_;
  const CompiledProgram& program_;
  const CompiledKernel& kernel_;
  const CompiledFunction& function_;
  std::vector<uint8_t> parameters_;  // as many bytes as the kernel declares
  std::vector<uint64_t> symbol_values_;
  uint32_t shared_bytes_ = 0;
  uint64_t local_bytes_per_thread_ = 0;
  uint32_t call_depth_max_ = 0;
  uint64_t grid_id_ = 0;
  alignas(64) uint32_t workspace_[64] = {};

  // Partner: each executor's check between turns. Relaxed: the flag only makes executors stop sooner, and the result is
  // read under the mutex.
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  LaunchResult result_;             // guarded by mutex_
  uint64_t next_cluster_ = 0;       // guarded by mutex_
  uint64_t finished_clusters_ = 0;  // guarded by mutex_
  uint64_t resident_clusters_ = 0;  // guarded by mutex_
  uint64_t resident_clusters_max_ = 0;
  uint32_t executors_inside_ = 0;                   // guarded by mutex_
  std::deque<std::unique_ptr<Cluster>> suspended_;  // guarded by mutex_
};

// The state of one thread while it executes blocks.
class Executor {
 public:
  // Finds the range that contains [address, address + bytes). Returns false if there is none, or if a write is not
  // allowed.
  bool find(uint64_t address, uint64_t bytes, bool write, uint32_t slot);

  struct CachedRange {
    uint64_t begin = 1, end = 0;
    bool writable = false;
  };
  static constexpr uint32_t kCachedRanges = 64;  // direct-mapped, by instruction
  CachedRange ranges[kCachedRanges];

  void attach(RunningLaunch& launch);
  std::vector<std::unique_ptr<Cluster>> spare_clusters;
  RunningLaunch* launch = nullptr;

 private:
  const DeviceMemory* memory_ = nullptr;
};

}  // namespace gpuwire::software_device
