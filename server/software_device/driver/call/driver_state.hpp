// The one object behind the exported functions: devices, handle tables, the memory table and the scheduler. Built by
// cuInit and never destroyed: programs call the driver from their own exit handlers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda.h>

#include "server/software_device/driver/checkpoint/process_checkpoint.hpp"
#include "server/software_device/driver/context/context_object.hpp"
#include "server/software_device/driver/graph/graph_object.hpp"
#include "server/software_device/driver/handle/handle_table.hpp"
#include "server/software_device/driver/module/image_object.hpp"
#include "server/software_device/driver/memory/memory_table.hpp"
#include "server/software_device/driver/module/module_object.hpp"
#include "server/software_device/driver/stream/operation.hpp"
#include "server/software_device/driver/stream/slow_work.hpp"
#include "server/software_device/driver/memory/pool_object.hpp"
#include "server/software_device/driver/memory/virtual_memory_object.hpp"
#include "server/software_device/execution/engine.hpp"

namespace gpuwire::software_device {

inline constexpr int kDriverVersionMax = 13000;  // of the API that the library knows
inline constexpr uint32_t kComputeMajor = 9;
inline constexpr uint32_t kComputeMinor = 0;
inline constexpr uint32_t kMultiprocessors = 4;
inline constexpr uint32_t kWarpSize = 32;
inline constexpr uint32_t kThreadsPerBlockMax = 1024;
inline constexpr uint32_t kThreadsPerMultiprocessorMax = 2048;
inline constexpr uint32_t kBlocksPerMultiprocessorMax = 32;
inline constexpr uint32_t kRegistersPerMultiprocessor = 65536;
inline constexpr uint32_t kSharedBytesPerBlock = 48 * 1024;
inline constexpr uint32_t kSharedBytesPerBlockOptIn = 227 * 1024;
inline constexpr uint32_t kSharedBytesPerMultiprocessor = 228 * 1024;
inline constexpr uint32_t kSharedBytesReservedPerBlock = 1024;
inline constexpr uint32_t kRegistersPerThreadMax = 255;
inline constexpr uint32_t kPortableClusterBlocksMax = 8;
inline constexpr uint32_t kClusterBlocksMax = 16;

// A context's handle and whether there is a context behind it now. Slots stay, so that the handle of a destroyed
// context is distinguished from one that never was; a primary context has one slot for ever.
struct ContextSlot {
  CUcontext handle = nullptr;
  Device* device = nullptr;
  bool primary = false;
  // Of a green context, which is its primary context with fewer multiprocessors: that one's slot. Fixed with the next
  // two before others see it.
  std::shared_ptr<ContextSlot> green_of;
  uint32_t processors = kAllProcessors;
  unsigned long long green_id = 0;

  // A green context ends with the primary context that it was made of.
  std::shared_ptr<Context> live() const {
    const std::shared_ptr<Context> base = green_of == nullptr ? nullptr : green_of->live();
    const std::lock_guard lock(mutex);
    return green_of == nullptr || base == context ? context : nullptr;
  }

  mutable std::mutex mutex;
  std::shared_ptr<Context> context;  // null: not active, or destroyed
};

// The resources of a green context. Lives as long as the process: the API has no function to release it.
struct ResourceDescriptor {
  int device = 0;
  uint32_t processors = 0;
};

inline constexpr uint64_t kFaultMask = 0xffffffff;  // of Device::faults: a CUresult

struct Device {
  int ordinal = 0;
  CUuuid uuid{};
  int pci_bus = 0;
  uint64_t total_bytes = 0;
  std::atomic<uint64_t> faults{0};      // how many work has had, above the newest one (kFaultMask); Context::fault()
  std::atomic<uint64_t> used_bytes{0};  // a sum, compared with total_bytes when it is raised: no order needed

  std::shared_ptr<ContextSlot> primary;
  std::mutex primary_mutex;  // guards the following members, and serialises retain, release and reset
  unsigned primary_users = 0;
  unsigned greens = 0;  // of the users, those that are green contexts
  unsigned primary_flags = 0;

  std::shared_ptr<Pool> default_pool;
  std::mutex pool_mutex;
  std::shared_ptr<Pool> current_pool;  // under pool_mutex

  // False when the device's memory would be exceeded.
  bool charge(uint64_t bytes) noexcept;
  // Charges as much of `bytes` as the device has room for; returns how much that is.
  uint64_t charge_at_most(uint64_t bytes) noexcept;
  void discharge(uint64_t bytes) noexcept { used_bytes.fetch_sub(bytes, std::memory_order_relaxed); }
};

class Driver {
 public:
  Driver();

  std::vector<std::unique_ptr<Device>> devices;
  bool device_named_twice = false;  // in CUDA_VISIBLE_DEVICES; then there are none
  // A primary context was reset after a kernel's fault: like NVIDIA's driver, the process takes no new one on any
  // device. A flag alone: nothing is published through it.
  std::atomic<bool> lost{false};
  ProcessCheckpoint checkpoint;
  SlowWork slow_work;
  const bool loads_wait;  // loading code waits for the context's work, as NVIDIA's driver may
  MemoryTable memory;
  OperationScheduler scheduler;
  std::unique_ptr<Engine> engine;

  HandleTable<CUcontext, ContextSlot> contexts{HandleKind::context};
  HandleTable<CUstream, Stream> streams{HandleKind::stream};
  HandleTable<CUevent, Event> events{HandleKind::event};
  HandleTable<CUmodule, ModuleInstance> modules{HandleKind::module};
  HandleTable<CUfunction, Function> functions{HandleKind::function};
  HandleTable<CUlibrary, Library> libraries{HandleKind::library};
  HandleTable<CUkernel, Kernel> kernels{HandleKind::kernel};
  HandleTable<CUmemGenericAllocationHandle, PhysicalMemory> physical{HandleKind::allocation};
  HandleTable<CUmemoryPool, Pool> pools{HandleKind::pool};
  HandleTable<CUgraph, Graph> graphs{HandleKind::graph};
  HandleTable<CUgraphNode, GraphNode> graph_nodes{HandleKind::graph_node};
  HandleTable<CUgraphExec, GraphExec> graph_execs{HandleKind::graph_exec};
  HandleTable<CUarray, ArrayObject> arrays{HandleKind::array};
  HandleTable<CUmipmappedArray, MipmappedArrayObject> mipmapped_arrays{HandleKind::mipmapped_array};
  HandleTable<CUtexObject, TextureObject> textures{HandleKind::texture};
  HandleTable<CUsurfObject, SurfaceObject> surfaces{HandleKind::surface};
  HandleTable<CUdevResourceDesc, ResourceDescriptor> resource_descriptors{HandleKind::resource_descriptor};
  DriverImages images;
  AddressReservations reservations;

  unsigned long long next_stream_id() noexcept { return stream_ids_.fetch_add(1, std::memory_order_relaxed); }
  unsigned long long next_context_id() noexcept { return context_ids_.fetch_add(1, std::memory_order_relaxed); }

  Device* device(CUdevice ordinal) noexcept {
    return ordinal >= 0 && static_cast<size_t>(ordinal) < devices.size() ? devices[static_cast<size_t>(ordinal)].get()
                                                                         : nullptr;
  }

 private:
  std::atomic<unsigned long long> stream_ids_{
      3};  // 1 and 2 read like the legacy and the per-thread stream; only uniqueness matters
  std::atomic<unsigned long long> context_ids_{1};
};

// Valid once cuInit has succeeded in this process.
Driver& driver() noexcept;

// The result of cuDriverGetVersion: GPUWIRE_SOFTWARE_DRIVER_VERSION, as 12040, or else kDriverVersionMax; never above
// that. Any time, also before cuInit.
int driver_version() noexcept;

// Builds the driver; CUDA_ERROR_NO_DEVICE when it is configured without devices, CUDA_ERROR_INVALID_DEVICE when
// CUDA_VISIBLE_DEVICES names one twice.
CUresult initialise_driver();

// CUDA_ERROR_NOT_INITIALIZED before cuInit, and in the child of a fork: threads and devices stay with the parent.
CUresult driver_status() noexcept;

// The meaning of a NULL stream for the call in progress: CU_STREAM_LEGACY, or CU_STREAM_PER_THREAD within the _ptds and
// _ptsz functions.
CUstream default_stream() noexcept;

// Makes NULL mean the per-thread stream while it lives.
class PerThreadDefaultStream {
 public:
  PerThreadDefaultStream() noexcept;
  ~PerThreadDefaultStream();
  PerThreadDefaultStream(const PerThreadDefaultStream&) = delete;
  PerThreadDefaultStream& operator=(const PerThreadDefaultStream&) = delete;

 private:
  CUstream outer_;
};

// --- the calling thread's stack of contexts; the last one is current

std::vector<std::shared_ptr<ContextSlot>>& context_stack() noexcept;
std::shared_ptr<ContextSlot> current_slot() noexcept;
// The green context that work sent to this stream by the calling thread belongs to, or null.
std::shared_ptr<ContextSlot> green_of(const Stream& stream) noexcept;

}  // namespace gpuwire::software_device
