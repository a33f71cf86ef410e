#include "server/driver/evictable/evictable_memory.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace gpuwire::server {
namespace {

template <class Value>
void write(void* out, Value value) {
  std::memcpy(out, &value, sizeof value);
}

// Writes an attribute for which memory of cuMemCreate differs from memory of cuMemAlloc. False: it has no difference.
bool write_attribute(void* out, CUpointer_attribute attribute, const EvictableBlock& block) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return write(out, block.owner), true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return write(out, static_cast<unsigned long long>(block.buffer_id)), true;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return write(out, block.buffer_id), true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return write(out, block.begin), true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return write(out, size_t(block.bytes)), true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return write(out, CUmemoryPool(nullptr)), true;
    default: return false;
  }
}

bool contains(const EvictableBlock& block, CUdeviceptr address) {
  return address >= block.begin && address - block.begin < block.bytes;
}

bool intersects(const EvictableBlock& block, CUdeviceptr address, uint64_t bytes) {
  return address < block.begin ? block.begin - address < bytes : address - block.begin < block.mapped_bytes;
}

// Waits for a context's work; its fault is not the caller's.
void wait_for(const DriverTable& driver, CUcontext context) {
  if (driver.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return;
  driver.cuCtxSynchronize();
  driver.cuCtxPopCurrent_v2(&context);
}

}  // namespace

EvictableMemory::EvictableMemory(const DriverTable& driver, Settings settings)
    : driver_(driver), settings_(std::move(settings)) {
  // Contexts that are older than the layer: the worker's prewarmed one.
  int count = 0;
  if (!driver_.cuDeviceGetCount || driver_.cuDeviceGetCount(&count) != CUDA_SUCCESS) return;
  for (CUdevice device = 0; device < count; ++device) {
    unsigned flags = 0;
    int active = 0;
    CUcontext context = nullptr;
    if (driver_.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active ||
        driver_.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
      continue;
    driver_.cuDevicePrimaryCtxRelease_v2(device);
    primaries_[device] = context;
  }
}

// --- allocation ----------------------------------------------------------------------------------------------------

// cuMemGetInfo returns all errors that a context may have: there is none, it was destroyed, its work has failed.
CUresult EvictableMemory::here(Place& place) const {
  size_t free_bytes = 0, total_bytes = 0;
  if (CUresult error = driver_.cuMemGetInfo_v2(&free_bytes, &total_bytes)) return error;
  if (CUresult error = driver_.cuCtxGetCurrent(&place.context)) return error;
  return driver_.cuCtxGetDevice(&place.device);
}

CUcontext EvictableMemory::owner_of(const Place& place) const {
  if (!greens_.contains(place.context)) return place.context;
  auto primary = primaries_.find(place.device);
  return primary == primaries_.end() ? place.context : primary->second;
}

uint64_t EvictableMemory::granularity(CUdevice device) {
  auto [known, fresh] = granularities_.try_emplace(device, 0);
  if (fresh) known->second = mapper_.granularity(device);
  return known->second;
}

std::optional<EvictableBlock> EvictableMemory::make_block(const Place& place, uint64_t bytes) {
  const uint64_t unit = granularity(place.device);
  if (unit == 0 || settings_.chunk_bytes_max % unit != 0) return std::nullopt;
  EvictableBlock block;
  block.device = place.device;
  block.owner = owner_of(place);
  if (mapper_.reserve(block, bytes, unit, settings_.chunk_bytes_max) != CUDA_SUCCESS) return std::nullopt;
  unsigned long long id = 0;
  if (map_block(block) != CUDA_SUCCESS) {
    mapper_.free_addresses(block);
    return std::nullopt;
  }
  if (driver_.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, block.begin) == CUDA_SUCCESS)
    block.buffer_id = id;
  return block;
}

CUresult EvictableMemory::map_block(EvictableBlock& block) {
  std::vector<CUdevice> peers;
  for (const auto& [accessor, owner] : peers_)
    if (owner == block.owner && accessor.device != block.device) peers.push_back(accessor.device);
  if (CUresult error = mapper_.map(block, peers)) return error;
  if (!block.sync_memops) return CUDA_SUCCESS;
  const CUresult result = mapper_.set_sync_memops(block, true);
  if (result != CUDA_SUCCESS) mapper_.unmap(block);
  return result;
}

// An allocation that has no room is given to the driver, whose answer is the native one.
CUresult EvictableMemory::allocate(CUdeviceptr* address, size_t bytes) {
  if (!address || bytes < settings_.block_bytes_min) return driver_.cuMemAlloc_v2(address, bytes);
  Place place;
  if (CUresult error = here(place)) return error;
  free_waiting();
  {
    MutexLock lock(mutex_);
    if (std::optional<EvictableBlock> block = make_block(place, bytes)) {
      *address = block->begin;
      blocks_.emplace(block->begin, std::move(*block));
      return CUDA_SUCCESS;
    }
  }
  return driver_.cuMemAlloc_v2(address, bytes);
}

CUresult EvictableMemory::memory_info(size_t* free_bytes, size_t* total_bytes) {
  free_waiting();
  return driver_.cuMemGetInfo_v2(free_bytes, total_bytes);
}

// --- free ----------------------------------------------------------------------------------------------------------

void EvictableMemory::release(EvictableBlock& block) {
  if (mapper_.unmap(block) == CUDA_SUCCESS) mapper_.free_addresses(block);
}

void EvictableMemory::free_waiting() {
  std::vector<Waiting> ready;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) return;
    const bool capturing = captures();
    std::erase_if(waiting_, [&](Waiting& one) {
      if (one.event ? driver_.cuEventQuery(one.event) == CUDA_ERROR_NOT_READY : capturing) return false;
      ready.push_back(std::move(one));
      return true;
    });
  }
  for (Waiting& one : ready) {
    if (one.event) driver_.cuEventDestroy_v2(one.event);
    else wait_for(driver_, one.block.owner);
  }
  MutexLock lock(mutex_);
  for (Waiting& one : ready) release(one.block);
}

// The driver's cuMemFree waits for work that may use the memory, and unmapping does not.
CUresult EvictableMemory::free(CUdeviceptr address) {
  if (!touches(address, 1)) return driver_.cuMemFree_v2(address);
  Place place;
  if (CUresult error = here(place)) return error;
  free_waiting();
  EvictableBlock block;
  {
    MutexLock lock(mutex_);
    auto found = blocks_.find(address);
    if (found == blocks_.end()) return CUDA_ERROR_INVALID_VALUE;
    block = std::move(found->second);
    blocks_.erase(found);
    // A capture would end by the wait. The memory is released by the first call after its end.
    if (captures()) {
      waiting_.push_back({std::move(block), nullptr});
      return CUDA_SUCCESS;
    }
  }
  const CUresult result = driver_.cuCtxSynchronize();
  if (block.owner != place.context) wait_for(driver_, block.owner);
  MutexLock lock(mutex_);
  release(block);
  return result;
}

// Stream-ordered: the memory is released by the first call after the stream has passed this point.
CUresult EvictableMemory::free_async(CUdeviceptr address, CUstream stream) {
  if (!touches(address, 1)) return driver_.cuMemFreeAsync(address, stream);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (CUresult error = driver_.cuStreamIsCapturing(stream, &status)) return error;
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) return driver_.cuMemFreeAsync(address, stream);
  CUevent event = nullptr;
  if (CUresult error = driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)) return error;
  CUresult result = driver_.cuEventRecord(event, stream);
  MutexLock lock(mutex_);
  auto found = blocks_.find(address);
  if (result == CUDA_SUCCESS && found == blocks_.end()) result = CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS) {
    driver_.cuEventDestroy_v2(event);
    return result;
  }
  waiting_.push_back({std::move(found->second), event});
  blocks_.erase(found);
  return CUDA_SUCCESS;
}

// --- questions about addresses -------------------------------------------------------------------------------------

std::optional<EvictableBlock> EvictableMemory::find(CUdeviceptr address) const {
  MutexLock lock(mutex_);
  auto behind = blocks_.upper_bound(address);
  if (behind == blocks_.begin() || !contains(std::prev(behind)->second, address)) return std::nullopt;
  return std::prev(behind)->second;
}

bool EvictableMemory::touches(CUdeviceptr address, uint64_t bytes) const {
  MutexLock lock(mutex_);
  auto behind = blocks_.upper_bound(address);
  if (behind != blocks_.end() && intersects(behind->second, address, bytes)) return true;
  if (behind != blocks_.begin() && intersects(std::prev(behind)->second, address, bytes)) return true;
  return std::ranges::any_of(waiting_, [&](const Waiting& one) { return intersects(one.block, address, bytes); });
}

CUresult EvictableMemory::address_range(CUdeviceptr* begin, size_t* bytes, CUdeviceptr address) {
  const CUresult result = driver_.cuMemGetAddressRange_v2(begin, bytes, address);
  const std::optional<EvictableBlock> block = result == CUDA_SUCCESS ? find(address) : std::nullopt;
  if (block && begin) *begin = block->begin;
  if (block && bytes) *bytes = block->bytes;
  return result;
}

CUresult EvictableMemory::attribute(void* out, CUpointer_attribute attribute, CUdeviceptr address) {
  const std::optional<EvictableBlock> block = out ? find(address) : std::nullopt;
  if (block && write_attribute(out, attribute, *block)) return CUDA_SUCCESS;
  return driver_.cuPointerGetAttribute(out, attribute, address);
}

CUresult EvictableMemory::attributes(unsigned count, CUpointer_attribute* attributes, void** out, CUdeviceptr address) {
  const CUresult result = driver_.cuPointerGetAttributes(count, attributes, out, address);
  const std::optional<EvictableBlock> block = result == CUDA_SUCCESS ? find(address) : std::nullopt;
  for (unsigned i = 0; block && i < count; ++i) write_attribute(out[i], attributes[i], *block);
  return result;
}

CUresult EvictableMemory::set_attribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  const CUresult result = driver_.cuPointerSetAttribute(value, attribute, address);
  if (result != CUDA_SUCCESS || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return result;
  MutexLock lock(mutex_);
  auto behind = blocks_.upper_bound(address);
  if (behind == blocks_.begin() || !contains(std::prev(behind)->second, address)) return result;
  EvictableBlock& block = std::prev(behind)->second;
  unsigned on = 0;
  std::memcpy(&on, value, sizeof on);
  block.sync_memops = on != 0;
  return mapper_.set_sync_memops(block, block.sync_memops);
}

// --- contexts and peers --------------------------------------------------------------------------------------------

bool EvictableMemory::has_access(CUdevice device, CUcontext owner) const {
  return std::ranges::any_of(peers_,
                             [&](const auto& pair) { return pair.first.device == device && pair.second == owner; });
}

void EvictableMemory::revoke_access(CUdevice device) {
  for (auto& [begin, block] : blocks_)
    if (block.device != device && !has_access(device, block.owner)) mapper_.set_access(block, device, false);
}

// Peer access covers all allocations of the other context, present and future (description of cuCtxEnablePeerAccess).
CUresult EvictableMemory::enable_peer(CUcontext peer, unsigned flags) {
  if (CUresult error = driver_.cuCtxEnablePeerAccess(peer, flags)) return error;
  Place place;
  if (CUresult error = here(place)) return error;
  CUresult result = CUDA_SUCCESS;
  {
    MutexLock lock(mutex_);
    const std::pair added{Accessor{place.context, place.device}, peer};
    peers_.insert(added);
    for (auto& [begin, block] : blocks_)
      if (result == CUDA_SUCCESS && block.owner == peer && block.device != place.device)
        result = mapper_.set_access(block, place.device, true);
    if (result == CUDA_SUCCESS) return result;
    peers_.erase(added);
    revoke_access(place.device);
  }
  driver_.cuCtxDisablePeerAccess(peer);
  return result;
}

CUresult EvictableMemory::disable_peer(CUcontext peer) {
  const CUresult result = driver_.cuCtxDisablePeerAccess(peer);
  CUcontext context = nullptr;
  CUdevice device = 0;
  if (result != CUDA_SUCCESS || driver_.cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
      driver_.cuCtxGetDevice(&device) != CUDA_SUCCESS)
    return result;
  MutexLock lock(mutex_);
  peers_.erase({Accessor{context, device}, peer});
  revoke_access(device);
  return result;
}

CUresult EvictableMemory::retain_primary(CUcontext* context, CUdevice device) {
  const CUresult result = driver_.cuDevicePrimaryCtxRetain(context, device);
  if (result != CUDA_SUCCESS) return result;
  MutexLock lock(mutex_);
  primaries_[device] = *context;
  return result;
}

CUresult EvictableMemory::primaries_released(CUresult result) {
  std::vector<CUcontext> ended;
  {
    MutexLock lock(mutex_);
    std::erase_if(primaries_, [&](const auto& primary) {
      unsigned flags = 0;
      int active = 1;
      if (driver_.cuDevicePrimaryCtxGetState(primary.first, &flags, &active) != CUDA_SUCCESS || active) return false;
      ended.push_back(primary.second);
      return true;
    });
  }
  for (CUcontext context : ended) context_gone(context);
  return result;
}

CUresult EvictableMemory::destroy_context(CUcontext context) {
  const CUresult result = driver_.cuCtxDestroy_v2(context);
  if (result == CUDA_SUCCESS) context_gone(context);
  return result;
}

CUresult EvictableMemory::context_of_green(CUcontext* context, CUgreenCtx green) {
  const CUresult result = driver_.cuCtxFromGreenCtx(context, green);
  if (result != CUDA_SUCCESS) return result;
  MutexLock lock(mutex_);
  greens_[*context] = green;
  return result;
}

CUresult EvictableMemory::destroy_green(CUgreenCtx green) {
  const CUresult result = driver_.cuGreenCtxDestroy(green);
  if (result != CUDA_SUCCESS) return result;
  {
    MutexLock lock(mutex_);
    std::erase_if(greens_, [&](const auto& entry) { return entry.second == green; });
  }
  return primaries_released(result);
}

// The driver has ended all work of the context.
void EvictableMemory::context_gone(CUcontext context) {
  MutexLock lock(mutex_);
  for (auto next = blocks_.begin(); next != blocks_.end();) {
    auto block = next++;
    if (block->second.owner != context) continue;
    release(block->second);
    blocks_.erase(block);
  }
  std::erase_if(waiting_, [&](Waiting& one) REQUIRES(mutex_) {
    if (one.block.owner != context) return false;
    if (one.event) driver_.cuEventDestroy_v2(one.event);
    release(one.block);
    return true;
  });
  std::set<CUdevice> devices;
  std::erase_if(peers_, [&](const auto& pair) {
    if (pair.first.context != context && pair.second != context) return false;
    devices.insert(pair.first.device);
    return true;
  });
  for (CUdevice device : devices) revoke_access(device);
}

}  // namespace gpuwire::server
