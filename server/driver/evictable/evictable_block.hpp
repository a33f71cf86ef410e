// A block of device memory that the layer serves from virtual memory, and the calls that map it and unmap it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>
#include <vector>

namespace gpuwire::server {

struct DriverTable;

// One physical allocation of a block.
struct EvictableChunk {
  CUdeviceptr begin = 0;
  uint64_t bytes = 0;  // a multiple of the device's granularity
  bool mapped = false;
};

// The block's addresses stay reserved while it exists, whether its chunks are mapped or not.
struct EvictableBlock {
  CUdeviceptr begin = 0;
  uint64_t bytes = 0;         // as the program asked for
  uint64_t mapped_bytes = 0;  // of all chunks, at least `bytes`
  CUdevice device = 0;
  CUcontext owner = nullptr;  // the context in which the program has allocated the block
  uint64_t buffer_id = 0;     // CU_POINTER_ATTRIBUTE_BUFFER_ID of the first mapping, reported for all later ones
  bool sync_memops = false;   // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as set by the program
  std::vector<EvictableChunk> chunks;
};

// Thread: any; a block is passed to one thread at a time.
class BlockMapper {
 public:
  // `driver`: the library's table; it outlives the object.
  explicit BlockMapper(const DriverTable& driver) : driver_(driver) {}

  // Returns the device's unit of virtual memory; 0: the device has no virtual memory management.
  uint64_t granularity(CUdevice device) const;

  // Reserves addresses for `bytes` of the block's device, in chunks of at most `chunk_bytes_max`. Sets begin,
  // mapped_bytes and the chunks, which are not mapped yet.
  // Precondition: both byte counts are positive, and `chunk_bytes_max` is a multiple of `granularity`.
  CUresult reserve(EvictableBlock& block, uint64_t bytes, uint64_t granularity, uint64_t chunk_bytes_max) const;
  // Frees the addresses. Precondition: no chunk is mapped.
  void free_addresses(const EvictableBlock& block) const;

  // Creates memory for all chunks that have none, maps it, and gives the block's device and `peers` access. If a call
  // fails, its error is returned, and the chunks that this call has mapped have no memory again.
  CUresult map(EvictableBlock& block, std::span<const CUdevice> peers) const;
  // Unmaps all chunks, which releases their memory. Returns the first error; the chunks before it have no memory.
  CUresult unmap(EvictableBlock& block) const;
  // Gives a device access to the block, or takes it away.
  CUresult set_access(const EvictableBlock& block, CUdevice device, bool access) const;
  // Sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of each chunk, which is an allocation of its own for the driver.
  CUresult set_sync_memops(const EvictableBlock& block, bool on) const;

 private:
  CUresult map_chunk(const EvictableBlock& block, EvictableChunk& chunk) const;

  const DriverTable& driver_;
};

}  // namespace gpuwire::server
