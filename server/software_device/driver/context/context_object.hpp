// A live context: its streams, its memory as kernels see it, and its fault once it has one.
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

// The range table as the kernels of one context may use it.
class ContextMemory final : public DeviceMemory {
 public:
  ContextMemory(const MemoryTable& table, int device) : table_(table), device_(device) {}
  Range find(uint64_t address) const noexcept override;
  uint64_t generation() const noexcept override { return table_.generation(); }
  // Devices whose memory this context may touch besides its own. Relaxed: enabling precedes the launches that rely on
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
  std::atomic<uint64_t> used_bytes_{0};  // a sum: no order needed
};

class Context : public std::enable_shared_from_this<Context> {
 public:
  // Every this many operations of a stream, submit() waits for the operations before the last interval: no queue is
  // longer than two.
  static constexpr unsigned kCheckpointInterval = 2048;
  // How long destruction waits for work in flight before it cancels running kernels.
  static constexpr std::chrono::milliseconds kDrainTimeout{5000};

  Context(Device& device, CUcontext handle, unsigned flags, unsigned long long id);

  CUcontext handle() const noexcept { return handle_; }
  Device& device() const noexcept { return device_; }
  unsigned long long id() const noexcept { return id_; }

  // --- streams
  // Resolves 0, 1 and 2 as well; null when there is no such stream. A created stream may belong to another context.
  std::shared_ptr<Stream> stream(CUstream handle);
  std::shared_ptr<Stream> create_stream(unsigned flags, int priority);
  bool destroy_stream(const std::shared_ptr<Stream>& stream);

  using Step = std::function<CUresult()>;
  // Appends work to a stream. The work is left out once the context has a fault; an error that it returns becomes the
  // context's fault.
  OperationPtr submit(Stream& stream, Step step, std::span<const OperationPtr> extra_dependencies = {});
  // Work of a graph: after its dependencies alone, in no stream.
  OperationPtr submit_unordered(Work work, std::span<const OperationPtr> dependencies);
  // As submit, for work that has to run even in a faulted context (callbacks that report the fault).
  OperationPtr submit_always(Stream& stream, std::function<void()> work);
  // Work of which the caller waits for the end: runs in the calling thread when its turn has come. Returns the
  // context's fault, if any.
  CUresult run(Stream& stream, const Step& step);
  // Waits for everything, then flushes the output. Returns the context's fault, if any.
  CUresult synchronize();
  CUresult synchronize(Stream& stream);
  CUresult synchronize(const OperationPtr& operation);
  // A marker behind all work of the context, for which all streams wait from now on.
  OperationPtr mark_everything();
  void delay_everything(const OperationPtr& operation);
  // The operations that an operation added to the stream now would wait for.
  std::vector<OperationPtr> pending(Stream& stream);

  // --- faults
  // Its own, or that of another context of the device since this one was made: a fault leaves all of them unusable (as
  // measured on driver 580).
  CUresult fault() const noexcept;
  void set_fault(CUresult fault) noexcept;
  // Does one piece of work unless the context has a fault. Output before a fault is available before the fault is seen.
  void step(const Step& step);
  // Polled by running kernels.
  bool cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }

  // Waits for the work in flight (cancelling it when that takes too long), then releases modules, memory and streams.
  void shut_down();

  ContextMemory memory;
  ContextHeap heap;
  OutputBuffer output;

  // --- plain settings, each on its own
  std::mutex settings_mutex;
  Limits limits;
  std::atomic<size_t> heap_limit_bytes;
  unsigned flags;
  unsigned api_version = 3020;
  CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;
  CUsharedconfig shared_config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;

  // --- code: instances of libraries in this context, by the library's handle; modules by their own
  std::mutex code_mutex;
  std::map<CUlibrary, std::shared_ptr<ModuleInstance>> library_instances;
  std::map<CUmodule, std::shared_ptr<ModuleInstance>> modules;

 private:
  std::vector<OperationPtr> dependencies_locked(const Stream& stream) const;
  std::function<void()> guarded(Step step);
  OperationPtr append_locked(Stream& stream, std::function<void()> work, std::vector<OperationPtr> dependencies);
  void bound_queue(std::unique_lock<std::mutex>& lock, Stream& stream);
  std::vector<OperationPtr> all_tails_locked() const;

  Device& device_;
  const CUcontext handle_;
  const unsigned long long id_;
  // Set once, by the thread that saw the fault; release and acquire so that a thread that sees it also sees the
  // kernel's earlier writes.
  std::atomic<CUresult> fault_{CUDA_SUCCESS};
  const uint64_t faults_before_;        // Device::faults when it was made
  std::atomic<bool> cancelled_{false};  // polled: no order needed

  mutable std::mutex submission_mutex_;
  std::shared_ptr<Stream> legacy_;
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread_;
  std::map<CUstream, std::shared_ptr<Stream>> created_;
  std::vector<OperationPtr> orphans_;  // last operations of destroyed streams
};

}  // namespace gpuwire::software_device
