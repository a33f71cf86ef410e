#include "server/driver/evictable/evictable_block.hpp"

#include <algorithm>

#include "server/driver_table.hpp"

namespace gpuwire::server {
namespace {

CUmemAllocationProp properties_on(CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return properties;
}

bool has_virtual_memory(const DriverTable& driver) {
  return driver.cuMemAddressReserve && driver.cuMemAddressFree && driver.cuMemCreate && driver.cuMemRelease &&
         driver.cuMemMap && driver.cuMemUnmap && driver.cuMemSetAccess && driver.cuMemGetAllocationGranularity;
}

}  // namespace

uint64_t BlockMapper::granularity(CUdevice device) const {
  int supported = 0;
  if (!has_virtual_memory(driver_) ||
      driver_.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) !=
          CUDA_SUCCESS ||
      !supported)
    return 0;
  const CUmemAllocationProp properties = properties_on(device);
  size_t unit = 0;
  return driver_.cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS
             ? unit
             : 0;
}

CUresult BlockMapper::reserve(EvictableBlock& block, uint64_t bytes, uint64_t granularity,
                              uint64_t chunk_bytes_max) const {
  const uint64_t units = (bytes - 1) / granularity + 1;
  if (units > UINT64_MAX / granularity) return CUDA_ERROR_OUT_OF_MEMORY;
  CUdeviceptr begin = 0;
  if (CUresult error = driver_.cuMemAddressReserve(&begin, units * granularity, 0, 0, 0)) return error;
  block.begin = begin;
  block.bytes = bytes;
  block.mapped_bytes = units * granularity;
  block.chunks.clear();
  for (uint64_t done = 0; done < block.mapped_bytes; done += block.chunks.back().bytes)
    block.chunks.push_back({.begin = begin + done, .bytes = std::min(block.mapped_bytes - done, chunk_bytes_max)});
  return CUDA_SUCCESS;
}

void BlockMapper::free_addresses(const EvictableBlock& block) const {
  driver_.cuMemAddressFree(block.begin, block.mapped_bytes);
}

// The handle is released at once: the driver keeps the memory until it is unmapped (description of cuMemRelease).
CUresult BlockMapper::map_chunk(const EvictableBlock& block, EvictableChunk& chunk) const {
  const CUmemAllocationProp properties = properties_on(block.device);
  CUmemGenericAllocationHandle handle = 0;
  if (CUresult error = driver_.cuMemCreate(&handle, chunk.bytes, &properties, 0)) return error;
  const CUresult result = driver_.cuMemMap(chunk.begin, chunk.bytes, 0, handle, 0);
  driver_.cuMemRelease(handle);
  chunk.mapped = result == CUDA_SUCCESS;
  return result;
}

CUresult BlockMapper::map(EvictableBlock& block, std::span<const CUdevice> peers) const {
  std::vector<EvictableChunk*> fresh;
  CUresult result = CUDA_SUCCESS;
  for (EvictableChunk& chunk : block.chunks) {
    if (chunk.mapped) continue;
    if (result = map_chunk(block, chunk); result != CUDA_SUCCESS) break;
    fresh.push_back(&chunk);
  }
  if (result == CUDA_SUCCESS) result = set_access(block, block.device, true);
  for (CUdevice peer : peers)
    if (result == CUDA_SUCCESS) result = set_access(block, peer, true);
  if (result == CUDA_SUCCESS) return result;
  for (EvictableChunk* chunk : fresh)
    if (driver_.cuMemUnmap(chunk->begin, chunk->bytes) == CUDA_SUCCESS) chunk->mapped = false;
  return result;
}

CUresult BlockMapper::unmap(EvictableBlock& block) const {
  for (EvictableChunk& chunk : block.chunks) {
    if (!chunk.mapped) continue;
    if (CUresult error = driver_.cuMemUnmap(chunk.begin, chunk.bytes)) return error;
    chunk.mapped = false;
  }
  return CUDA_SUCCESS;
}

CUresult BlockMapper::set_access(const EvictableBlock& block, CUdevice device, bool access) const {
  CUmemAccessDesc description{};
  description.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  description.flags = access ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return driver_.cuMemSetAccess(block.begin, block.mapped_bytes, &description, 1);
}

CUresult BlockMapper::set_sync_memops(const EvictableBlock& block, bool on) const {
  const unsigned value = on ? 1 : 0;
  for (const EvictableChunk& chunk : block.chunks)
    if (CUresult error = driver_.cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, chunk.begin))
      return error;
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::server
