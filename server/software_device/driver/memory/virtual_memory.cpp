// Virtual memory management: reserving addresses, creating physical memory, mapping it, setting access.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/call/refusal.hpp"

using namespace gpuwire::software_device;

namespace {

// The unit of current drivers. Addresses and sizes must be multiples of it.
constexpr uint64_t kGranularity = 2 * 1024 * 1024;

// The beginning of the names of the anonymous files, which identifies a file descriptor from another process. The
// device's ordinal follows.
constexpr char kFileName[] = "gpuwire_software_device_";

bool aligned(uint64_t value) { return value % kGranularity == 0; }

CUresult check_properties(const CUmemAllocationProp& properties) {
  if (properties.type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool shareable = properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ||
                         properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (!shareable || properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return not_supported("an allocation in host memory, or shareable by another handle than a file descriptor");
  }
  return driver().device(properties.location.id) == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

template <typename Body>
CUresult with_physical(CUmemGenericAllocationHandle handle, Body&& body) noexcept {
  return with_driver([&]() -> CUresult {
    const auto physical = driver().physical.find(handle);
    return physical == nullptr ? CUDA_ERROR_INVALID_VALUE : body(physical);
  });
}

// Returns the mapped ranges that begin in [address, address + bytes).
std::vector<uint64_t> mappings_in(uint64_t address, uint64_t bytes) {
  return driver().memory.select([&](const MemoryRange& range) {
    return range.kind == MemoryKind::mapped && range.begin >= address && range.end() <= address + bytes;
  });
}

bool take_pages_away(uint64_t address, uint64_t bytes) {
  return mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

// Returns null if the file is not of this kind.
Device* device_of_file(int descriptor) {
  char path[64], target[128];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(path, target, sizeof target);
  const std::string prefix = std::string("/memfd:") + kFileName;
  if (length <= 0 || static_cast<size_t>(length) <= prefix.size() ||
      prefix.compare(0, prefix.size(), target, prefix.size()) != 0) {
    return nullptr;
  }
  return driver().device(std::atoi(std::string(target, static_cast<size_t>(length)).substr(prefix.size()).c_str()));
}

}  // namespace

namespace gpuwire::software_device {

PhysicalMemory::~PhysicalMemory() {
  driver().checkpoint.storage.remove(this);
  close(file);
  if (charged) {
    device.discharge(bytes);
  }
}

uint64_t AddressReservations::reserve(uint64_t bytes, uint64_t alignment, uint64_t hint) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const std::lock_guard lock(mutex_);
  uint64_t begin = 0;
  if (hint != 0 && hint % alignment == 0) {
    void* const wanted = mmap(reinterpret_cast<void*>(hint), bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
    begin = wanted == MAP_FAILED ? 0 : reinterpret_cast<uint64_t>(wanted);
  }
  if (begin == 0) {
    void* const anywhere = mmap(nullptr, bytes + alignment, PROT_NONE, kFlags, -1, 0);
    if (anywhere == MAP_FAILED) {
      return 0;
    }
    const auto start = reinterpret_cast<uint64_t>(anywhere);
    begin = (start + alignment - 1) / alignment * alignment;
    if (begin > start) {
      munmap(anywhere, begin - start);
    }
    munmap(reinterpret_cast<void*>(begin + bytes), start + alignment - begin);
  }
  ranges_.emplace(begin, bytes);
  return begin;
}

bool AddressReservations::release(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second != bytes) {
    return false;
  }
  munmap(reinterpret_cast<void*>(address), bytes);
  ranges_.erase(found);
  return true;
}

bool AddressReservations::covers(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  auto range = ranges_.upper_bound(address);
  if (range == ranges_.begin()) {
    return false;
  }
  --range;
  return address - range->first <= range->second && bytes <= range->second - (address - range->first);
}

std::optional<AddressReservations::Range> AddressReservations::find(uint64_t address) {
  const std::lock_guard lock(mutex_);
  auto range = ranges_.upper_bound(address);
  if (range == ranges_.begin() || address - (--range)->first >= range->second) {
    return std::nullopt;
  }
  return Range{range->first, range->second};
}

}  // namespace gpuwire::software_device

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags) {
  return with_driver([&]() -> CUresult {
    if (granularity == nullptr || properties == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *granularity = kGranularity;
    return check_properties(*properties);
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  return with_driver([&]() -> CUresult {
    if (out == nullptr || bytes == 0 || !aligned(bytes) || flags != 0 || (alignment & (alignment - 1)) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const uint64_t address = driver().reservations.reserve(bytes, std::max<uint64_t>(alignment, kGranularity), hint);
    if (address == 0) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = address;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return with_driver([&]() -> CUresult {
    if (!mappings_in(address, bytes).empty()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return driver().reservations.release(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  return with_driver([&]() -> CUresult {
    if (out == nullptr || properties == nullptr || bytes == 0 || !aligned(bytes) || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = check_properties(*properties); result != CUDA_SUCCESS) {
      return result;
    }
    Device& device = *driver().device(properties->location.id);
    if (!device.charge(bytes)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const int file = memfd_create((kFileName + std::to_string(device.ordinal)).c_str(), MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
      if (file >= 0) {
        close(file);
      }
      device.discharge(bytes);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto physical = std::make_shared<PhysicalMemory>(device, bytes, file);
    physical->properties = *properties;
    driver().checkpoint.storage.add(
        physical.get(), {.kind = StoragePiece::Kind::file, .file = file, .bytes = bytes, .device = &device});
    const CUmemGenericAllocationHandle handle = physical->handle = driver().physical.reserve();
    driver().physical.insert(handle, std::move(physical));
    *out = handle;
    return CUDA_SUCCESS;
  });
}

// The descriptor keeps the memory alive, like on NVIDIA's driver.
CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  return with_physical(handle, [&](const std::shared_ptr<PhysicalMemory>& physical) -> CUresult {
    const bool shareable = type != CU_MEM_HANDLE_TYPE_NONE && physical->properties.requestedHandleTypes == type;
    if (out == nullptr || flags != 0 || !shareable) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int descriptor = fcntl(physical->file, F_DUPFD_CLOEXEC, 0);
    if (descriptor < 0) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    driver().checkpoint.storage.remove(physical.get());  // other processes may use it, so it stays during a checkpoint
    *static_cast<int*>(out) = descriptor;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* shared,
                                        CUmemAllocationHandleType type) {
  return with_driver([&]() -> CUresult {
    if (out == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int descriptor = static_cast<int>(reinterpret_cast<intptr_t>(shared));
    Device* const device = device_of_file(descriptor);
    struct stat facts {};
    if (device == nullptr || fstat(descriptor, &facts) != 0 || facts.st_size <= 0) {
      return CUDA_ERROR_UNKNOWN;
    }
    const int file = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (file < 0) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    auto physical = std::make_shared<PhysicalMemory>(*device, static_cast<uint64_t>(facts.st_size), file);
    physical->charged = false;
    physical->properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .requestedHandleTypes = type,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal},
                            .win32HandleMetaData = nullptr,
                            .allocFlags = {}};
    const CUmemGenericAllocationHandle handle = physical->handle = driver().physical.reserve();
    driver().physical.insert(handle, std::move(physical));
    *out = handle;
    return CUDA_SUCCESS;
  });
}

// A mapping keeps the memory alive until it is unmapped.
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return with_physical(handle, [&](const std::shared_ptr<PhysicalMemory>& physical) -> CUresult {
    if (physical->references.fetch_sub(1, std::memory_order_relaxed) == 1) {
      driver().physical.take(handle);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* out, CUmemGenericAllocationHandle handle) {
  return with_physical(handle, [&](const std::shared_ptr<PhysicalMemory>& physical) -> CUresult {
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *out = physical->properties;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return with_physical(handle, [&](const std::shared_ptr<PhysicalMemory>& physical) -> CUresult {
    const bool fits = bytes != 0 && aligned(address) && aligned(bytes) && aligned(offset) &&
                      offset <= physical->bytes && bytes <= physical->bytes - offset;
    if (!fits || flags != 0 || !driver().reservations.covers(address, bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // Entered into the table first, so that two mappings of one address cannot both call mmap.
    const uint64_t inserted = driver().memory.insert({.begin = address,
                                                      .bytes = bytes,
                                                      .kind = MemoryKind::mapped,
                                                      .device = physical->device.ordinal,
                                                      .readable_by = 0,
                                                      .writable_by = 0,
                                                      .backing = physical});
    if (inserted == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    void* const mapped = mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                              physical->file, static_cast<off_t>(offset));
    if (mapped == MAP_FAILED) {
      driver().memory.remove(address, [](const MemoryRange&) { return true; });
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return with_driver([&]() -> CUresult {
    if (!aligned(address) || !aligned(bytes) || !driver().reservations.covers(address, bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // Running work may use the pages. Without this wait, an access would end the process and not only its context.
    for (const auto& slot : driver().contexts.all()) {
      if (const auto context = slot->live()) {
        context->synchronize();  // the other context's fault is not the caller's
      }
    }
    // Unmapping a range that is not mapped succeeds, like on NVIDIA's driver.
    for (const uint64_t begin : mappings_in(address, bytes)) {
      const auto removed =
          driver().memory.remove(begin, [](const MemoryRange& range) { return range.kind == MemoryKind::mapped; });
      if (removed && !take_pages_away(begin, removed->bytes)) {
        return CUDA_ERROR_OPERATING_SYSTEM;
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* entries, size_t count) {
  return with_driver([&]() -> CUresult {
    const auto mappings = mappings_in(address, bytes);
    if (entries == nullptr || count == 0 || mappings.empty()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; ++i) {
      const CUmemLocation& location = entries[i].location;
      if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || driver().device(location.id) == nullptr) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
      const uint32_t bit = 1u << location.id;
      for (const uint64_t begin : mappings) {
        driver().memory.update(begin, [&](MemoryRange& range) {
          range.readable_by = (entries[i].flags & CU_MEM_ACCESS_FLAGS_PROT_READ) != 0 ? range.readable_by | bit
                                                                                      : range.readable_by & ~bit;
          range.writable_by = entries[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? range.writable_by | bit
                                                                                     : range.writable_by & ~bit;
        });
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  return with_driver([&]() -> CUresult {
    const auto range = driver().memory.find(address);
    if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
        driver().device(location->id) == nullptr || !range || range->kind != MemoryKind::mapped) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const bool readable = (range->readable_by >> location->id & 1) != 0,
               writable = (range->writable_by >> location->id & 1) != 0;
    *flags = writable   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : readable ? CU_MEM_ACCESS_FLAGS_PROT_READ
                        : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* pointer) {
  return with_driver([&]() -> CUresult {
    const auto range = driver().memory.find(reinterpret_cast<uint64_t>(pointer));
    if (out == nullptr || !range || range->kind != MemoryKind::mapped) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto physical = std::static_pointer_cast<PhysicalMemory>(range->backing);
    // Returns the present handle while it is alive (cuda.h, cuMemRetainAllocationHandle), else a new one.
    if (driver().physical.find(physical->handle) == physical) {
      physical->references.fetch_add(1, std::memory_order_relaxed);
    } else {
      physical->handle = driver().physical.reserve();
      physical->references.store(1, std::memory_order_relaxed);
      driver().physical.insert(physical->handle, physical);
    }
    *out = physical->handle;
    return CUDA_SUCCESS;
  });
}
