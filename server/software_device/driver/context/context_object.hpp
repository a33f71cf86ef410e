// A live context: its streams, its memory as kernels see it, and its fault if it has one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "protocol/threads/mutex.hpp"
#include "server/software_device/driver/memory/memory_table.hpp"
#include "server/software_device/driver/launch/output.hpp"
#include "server/software_device/driver/stream/stream_object.hpp"
#include "server/software_device/driver/stream/stream_work.hpp"
#include "server/software_device/execution/engine.hpp"

namespace gpuwire::software_device {

struct Device;
class ModuleInstance;
class Library;

// Limits of cuCtxSetLimit, in bytes or counts.
struct Limits {
  size_t stack_bytes = 1024;
  size_t printf_fifo_bytes = size_t{1} << 20;
  size_t malloc_heap_bytes = size_t{8} << 20;
  size_t pending_launches = 2048;
  size_t l2_fetch_bytes = 64;
  size_t persisting_l2_bytes = 0;
};

// The memory table as the kernels of one context may use it.
class ContextMemory final : public DeviceMemory {
 public:
  ContextMemory(const MemoryTable& table, int device) : table_(table), device_(device) {}
  Range find(uint64_t address) const noexcept override;
  uint64_t generation() const noexcept override { return table_.generation(); }
  // Other devices whose memory this context may access. Relaxed: peer access is enabled before the launches that need
  // it.
  std::atomic<uint32_t> peers{0};

 private:
  const MemoryTable& table_;
  int device_;
};

// malloc() of device code, within the context's limit.
class ContextHeap final : public DeviceHeap {
 public:
  ContextHeap(MemoryTable& table, CUcontext context, const std::atomic<size_t>& limit_bytes)
      : table_(table), context_(context), limit_bytes_(limit_bytes) {}
  uint64_t allocate(uint64_t bytes) noexcept override;
  void free(uint64_t address) noexcept override;

 private:
  MemoryTable& table_;
  CUcontext context_;
  const std::atomic<size_t>& limit_bytes_;
  std::atomic<uint64_t> used_bytes_{0};  // relaxed: a sum
};

class Context : public std::enable_shared_from_this<Context> {
 public:
  // After every interval of this many operations of a stream, submit() waits for the operations before the last
  // interval, so a queue is never longer than two intervals.
  static constexpr unsigned kCheckpointInterval = 2048;
  // The time for which destruction waits for running work before it cancels running kernels.
  static constexpr std::chrono::milliseconds kDrainTimeout{5000};

  Context(Device& device, CUcontext handle, unsigned flags, unsigned long long id);

  CUcontext handle() const noexcept { return handle_; }
  Device& device() const noexcept { return device_; }
  unsigned long long id() const noexcept { return id_; }

  // --- streams
  // Returns the stream for a handle, including 0, 1 and 2; null if there is no such stream. A created stream may belong
  // to another context.
  std::shared_ptr<Stream> stream(CUstream handle);
  std::shared_ptr<Stream> create_stream(unsigned flags, int priority);
  bool destroy_stream(const std::shared_ptr<Stream>& stream);

  using Step = std::function<CUresult()>;
  // Appends work to a stream. Work is skipped after the context has a fault, and an error of the work becomes the
  // context's fault.
  OperationPtr submit(Stream& stream, Step step, std::span<const OperationPtr> extra_dependencies = {});
  // Submits work of a graph, which waits only for its dependencies and is in no stream.
  OperationPtr submit_unordered(Work work, std::span<const OperationPtr> dependencies);
  // Like submit(), for work that must run even in a faulted context (callbacks that report the fault).
  OperationPtr submit_always(Stream& stream, std::function<void()> work);
  // Runs work in the calling thread when its turn in the stream has come, and waits for it. Returns the context's
  // fault, if any.
  CUresult run(Stream& stream, const Step& step);
  // Waits for all work, then flushes the output. Returns the context's fault, if any.
  CUresult synchronize();
  CUresult synchronize(Stream& stream);
  CUresult synchronize(const OperationPtr& operation);
  // Returns a marker behind all work of the context. delay_everything() makes all later work of all streams wait for
  // it.
  OperationPtr mark_everything();
  void delay_everything(const OperationPtr& operation);
  // Returns the operations for which an operation added to the stream now would wait.
  std::vector<OperationPtr> pending(Stream& stream);
  // Returns whether the stream's own operations have finished. It may still wait for operations of other streams.
  bool has_no_own_work(Stream& stream);

  // --- faults
  // Returns the context's own fault, or a fault of another context of the device since this one was created, because a
  // fault makes all of them unusable (measured on driver 580).
  CUresult fault() const noexcept;
  void set_fault(CUresult fault) noexcept;
  // Runs one piece of work unless the context has a fault. Output from before a fault is available before the fault is
  // visible.
  void step(const Step& step);
  // Running kernels poll this.
  bool cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }

  // Waits for the running work, and cancels it if that takes too long. Then releases modules, memory and streams.
  void shut_down();

  ContextMemory memory;
  ContextHeap heap;
  OutputBuffer output;

  // --- independent settings
  std::mutex settings_mutex;
  Limits limits;
  std::atomic<size_t> heap_limit_bytes;
  unsigned flags;
  unsigned api_version = 3020;
  CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;
  CUsharedconfig shared_config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;

  // --- code: instances of libraries in this context by the library's handle, and modules by their own handle
  Mutex code_mutex;
  std::map<CUlibrary, std::shared_ptr<ModuleInstance>> library_instances GUARDED_BY(code_mutex);
  std::map<CUmodule, std::shared_ptr<ModuleInstance>> modules GUARDED_BY(code_mutex);

 private:
  std::vector<OperationPtr> dependencies_locked(const Stream& stream) const;
  std::function<void()> guarded(Step step);
  OperationPtr append_locked(Stream& stream, std::function<void()> work, std::vector<OperationPtr> dependencies);
  void bound_queue(std::unique_lock<std::mutex>& lock, Stream& stream);
  std::vector<OperationPtr> all_tails_locked() const;

  Device& device_;
  const CUcontext handle_;
  const unsigned long long id_;
  // Set once, by the thread that detects the fault. Release and acquire, so that a thread that sees the fault also sees
  // the kernel's earlier writes.
  std::atomic<CUresult> fault_{CUDA_SUCCESS};
  const uint64_t faults_before_;        // Device::faults when the context was created
  std::atomic<bool> cancelled_{false};  // relaxed: only polled

  mutable std::mutex submission_mutex_;
  std::shared_ptr<Stream> legacy_;
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread_;
  std::map<CUstream, std::shared_ptr<Stream>> created_;
  std::vector<OperationPtr> orphans_;  // the last operations of destroyed streams
};

}  // namespace gpuwire::software_device
