// The object behind the exported functions: devices, handle tables, the memory table and the scheduler. cuInit creates
// it and nothing destroys it, because programs call the driver from their own exit handlers.
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

inline constexpr int kDriverVersionMax = 13000;  // of the API that this library implements
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

// A context's handle, and the context behind it if there is one now. Slots are never removed, so that the handle of a
// destroyed context differs from one that never existed. A primary context keeps one slot forever.
struct ContextSlot {
  CUcontext handle = nullptr;
  Device* device = nullptr;
  bool primary = false;
  // For a green context, which is its primary context with fewer multiprocessors: the primary context's slot. This and
  // the next two members are set before other threads see the slot.
  std::shared_ptr<ContextSlot> green_of;
  uint32_t processors = kAllProcessors;
  unsigned long long green_id = 0;

  // Returns the context if it exists. A green context ends with the primary context from which it was made.
  std::shared_ptr<Context> live() const {
    const std::shared_ptr<Context> base = green_of == nullptr ? nullptr : green_of->live();
    const std::lock_guard lock(mutex);
    return green_of == nullptr || base == context ? context : nullptr;
  }

  mutable std::mutex mutex;
  std::shared_ptr<Context> context;  // null: not active, or destroyed
};

// The resources of a green context. Never released, because the API has no function for it.
struct ResourceDescriptor {
  int device = 0;
  uint32_t processors = 0;
};

inline constexpr uint64_t kFaultMask = 0xffffffff;  // the bits of Device::faults with a CUresult

struct Device {
  int ordinal = 0;
  CUuuid uuid{};
  int pci_bus = 0;
  uint64_t total_bytes = 0;
  // The number of faults of all work, above the bits of the newest one (kFaultMask); see Context::fault().
  std::atomic<uint64_t> faults{0};
  // Relaxed: a sum that is compared with total_bytes when it is raised.
  std::atomic<uint64_t> used_bytes{0};

  std::shared_ptr<ContextSlot> primary;
  std::mutex primary_mutex;  // guards the following members, and serialises retain, release and reset
  unsigned primary_users = 0;
  unsigned greens = 0;  // the part of primary_users that are green contexts
  unsigned primary_flags = 0;

  std::shared_ptr<Pool> default_pool;
  std::mutex pool_mutex;
  std::shared_ptr<Pool> current_pool;  // guarded by pool_mutex

  // Returns false if this would exceed the device's memory.
  bool charge(uint64_t bytes) noexcept;
  void discharge(uint64_t bytes) noexcept { used_bytes.fetch_sub(bytes, std::memory_order_relaxed); }
};

class Driver {
 public:
  Driver();

  std::vector<std::unique_ptr<Device>> devices;
  bool device_named_twice = false;  // in CUDA_VISIBLE_DEVICES; there are no devices then
  // A primary context was reset after a kernel's fault. Like on NVIDIA's driver, the process then accepts no new
  // primary context on any device. Relaxed: the flag publishes nothing.
  std::atomic<bool> lost{false};
  ProcessCheckpoint checkpoint;
  SlowWork slow_work;
  const bool loads_wait;  // loading code waits for the context's work, as NVIDIA's driver may do
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
  // 1 and 2 denote the legacy and the per-thread stream. Relaxed: only the uniqueness of numbers matters.
  std::atomic<unsigned long long> stream_ids_{3};
  std::atomic<unsigned long long> context_ids_{1};
};

// Precondition: cuInit has succeeded in this process.
Driver& driver() noexcept;

// Returns the result of cuDriverGetVersion: GPUWIRE_SOFTWARE_DRIVER_VERSION, such as 12040, or kDriverVersionMax, which
// is also the upper limit. May be called before cuInit.
int driver_version() noexcept;

// Creates the driver. Returns CUDA_ERROR_NO_DEVICE if it is configured without devices, and CUDA_ERROR_INVALID_DEVICE
// if CUDA_VISIBLE_DEVICES lists one twice.
CUresult initialise_driver();

// Returns CUDA_ERROR_NOT_INITIALIZED before cuInit and in the child of a fork, because threads and devices stay with
// the parent.
CUresult driver_status() noexcept;

// Returns the stream that NULL means in the current call: CU_STREAM_LEGACY, or CU_STREAM_PER_THREAD inside the _ptds
// and _ptsz functions.
CUstream default_stream() noexcept;

// Makes NULL mean the per-thread stream during its lifetime.
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
// Returns the green context of work that the calling thread submits to this stream, or null.
std::shared_ptr<ContextSlot> green_of(const Stream& stream) noexcept;

}  // namespace gpuwire::software_device
