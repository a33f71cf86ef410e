// Copies chunks between device and host memory, in parallel.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpuwire::server {

struct DriverTable;

// The threads of one eviction or return. Each moves pieces through pinned memory of its own: while the device copies
// the piece of one thread, the others copy theirs between pinned and pageable memory, which is slower than the link to
// the device (8 threads were enough on an H200).
inline constexpr unsigned kCopyThreadsMax = 8;
// The pinned memory of each thread, and the size of a piece.
inline constexpr uint64_t kCopyStagingBytes = uint64_t{8} << 20;

struct ChunkCopy {
  CUcontext context = nullptr;  // in which the copy is made
  CUdeviceptr device = 0;
  std::byte* host = nullptr;
  uint64_t bytes = 0;
};

enum class CopyDirection : uint8_t { to_host, to_device };

// Makes all copies and returns the first error; the other copies may then be made or not. The calling thread's current
// context stays. Blocks until all copies have ended.
//
// The copies are the driver's synchronous ones: they need no streams, whose memory the device may not have, and a
// thread that waits for the device leaves the device's copy engine to the others.
//
// Threads: at most `threads_max` of its own, which have ended when it returns; they share an index of the next piece.
CUresult copy_chunks(const DriverTable& driver, std::span<const ChunkCopy> copies, CopyDirection direction,
                     unsigned threads_max);

}  // namespace gpuwire::server
