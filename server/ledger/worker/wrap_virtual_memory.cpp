// Physical memory, its mappings, and multicast objects.
#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/virtual_memory_charges.hpp"

namespace gpuwire::server {

void VirtualMemoryCharges::created(CUmemGenericAllocationHandle handle, uint32_t column, uint64_t bytes) {
  auto physical = std::make_shared<Physical>();
  physical->column = column;
  physical->bytes = bytes;
  MutexLock lock(mutex_);
  handles_[handle] = std::move(physical);
}

std::shared_ptr<VirtualMemoryCharges::Physical> VirtualMemoryCharges::at(CUdeviceptr address) const {
  auto behind = mappings_.upper_bound(address);
  if (behind == mappings_.begin()) return nullptr;
  auto& [begin, mapping] = *std::prev(behind);
  return address - begin < mapping.bytes ? mapping.physical : nullptr;
}

void VirtualMemoryCharges::retained(CUmemGenericAllocationHandle handle, CUdeviceptr address) {
  MutexLock lock(mutex_);
  auto physical = at(address);
  if (!physical) return;
  ++physical->holders;
  handles_[handle] = std::move(physical);
}

void VirtualMemoryCharges::released(CUmemGenericAllocationHandle handle) {
  MutexLock lock(mutex_);
  auto found = handles_.find(handle);
  if (found == handles_.end()) return;
  auto physical = found->second;
  if (physical->holders != 0 && --physical->holders == 0) handles_.erase(found);
  give_back_if_unused(*physical);
}

void VirtualMemoryCharges::mapped(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle) {
  MutexLock lock(mutex_);
  auto found = handles_.find(handle);
  if (found == handles_.end()) return;
  ++found->second->mappings;
  mappings_[address] = {bytes, found->second};
}

void VirtualMemoryCharges::unmapped(CUdeviceptr address, uint64_t bytes) {
  MutexLock lock(mutex_);
  auto first = mappings_.lower_bound(address);
  auto last = first;
  for (; last != mappings_.end() && last->first - address < bytes; ++last) {
    Physical& physical = *last->second.physical;
    if (physical.mappings != 0) --physical.mappings;
    give_back_if_unused(physical);
  }
  mappings_.erase(first, last);
}

void VirtualMemoryCharges::leave(Physical& physical) {
  if (std::exchange(physical.left, true)) return;
  ledger_.share(physical.column, physical.bytes);
}

void VirtualMemoryCharges::leave(CUmemGenericAllocationHandle handle) {
  MutexLock lock(mutex_);
  auto found = handles_.find(handle);
  if (found != handles_.end()) leave(*found->second);
}

void VirtualMemoryCharges::leave_mapped(CUdeviceptr address) {
  MutexLock lock(mutex_);
  if (auto physical = at(address)) leave(*physical);
}

void VirtualMemoryCharges::give_back_if_unused(const Physical& physical) {
  if (physical.holders == 0 && physical.mappings == 0 && !physical.left)
    ledger_.give_back(physical.column, physical.bytes);
}

namespace {

CUresult mem_create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                    unsigned long long flags) {
  LedgerParts& parts = ledger_parts();
  auto column = parts.column(properties->location);
  if (!column) return CUDA_ERROR_OUT_OF_MEMORY;
  // The memory taken equals the size: the driver refuses a size that is not a multiple of its granularity.
  return take(
      parts.ledger, *column, bytes, [&] { return parts.driver.cuMemCreate(handle, bytes, properties, flags); },
      [&] { return bytes; }, [&](uint64_t taken) { parts.virtual_memory->created(*handle, *column, taken); }, [] {});
}

// The replay makes these calls one after the other, so the driver does not reuse a handle or address before it is
// forgotten here.
CUresult mem_release(CUmemGenericAllocationHandle handle) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMemRelease(handle);
  if (result == CUDA_SUCCESS) parts.virtual_memory->released(handle);
  return result;
}

CUresult mem_retain_allocation_handle(CUmemGenericAllocationHandle* handle, void* address) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMemRetainAllocationHandle(handle, address);
  if (result == CUDA_SUCCESS) parts.virtual_memory->retained(*handle, reinterpret_cast<CUdeviceptr>(address));
  return result;
}

CUresult mem_map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                 unsigned long long flags) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMemMap(address, bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS) parts.virtual_memory->mapped(address, bytes, handle);
  return result;
}

CUresult mem_unmap(CUdeviceptr address, size_t bytes) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMemUnmap(address, bytes);
  if (result == CUDA_SUCCESS) parts.virtual_memory->unmapped(address, bytes);
  return result;
}

CUresult mem_export(void* shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                    unsigned long long flags) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMemExportToShareableHandle(shareable, handle, type, flags);
  if (result == CUDA_SUCCESS) parts.virtual_memory->leave(handle);
  return result;
}

// Imported memory is charged to the session that made it.
CUresult mem_import(CUmemGenericAllocationHandle* handle, void* shareable, CUmemAllocationHandleType type) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMemImportFromShareableHandle(handle, shareable, type);
  if (result == CUDA_SUCCESS) parts.ledger.note_import();
  return result;
}

// A multicast object may hold its bound memory.
CUresult multicast_bind_mem(CUmemGenericAllocationHandle multicast, size_t offset, CUmemGenericAllocationHandle memory,
                            size_t memory_offset, size_t bytes, unsigned long long flags) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMulticastBindMem(multicast, offset, memory, memory_offset, bytes, flags);
  if (result == CUDA_SUCCESS) parts.virtual_memory->leave(memory);
  return result;
}

CUresult multicast_bind_addr(CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr address, size_t bytes,
                             unsigned long long flags) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMulticastBindAddr(multicast, offset, address, bytes, flags);
  if (result == CUDA_SUCCESS) parts.virtual_memory->leave_mapped(address);
  return result;
}

}  // namespace

void wrap_virtual_memory(DriverTable& table) {
  wrap(table.cuMemCreate, &mem_create);
  wrap(table.cuMemRelease, &mem_release);
  wrap(table.cuMemRetainAllocationHandle, &mem_retain_allocation_handle);
  wrap(table.cuMemMap, &mem_map);
  wrap(table.cuMemUnmap, &mem_unmap);
  wrap(table.cuMemExportToShareableHandle, &mem_export);
  wrap(table.cuMemImportFromShareableHandle, &mem_import);
  wrap(table.cuMulticastBindMem, &multicast_bind_mem);
  wrap(table.cuMulticastBindAddr, &multicast_bind_addr);
}

}  // namespace gpuwire::server
