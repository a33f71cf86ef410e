// Operations of a stream on single words: waiting until a word has a value, and writing one (CUDA driver API, "Stream
// memory operations").
#pragma once

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/driver/stream/stream_work.hpp"

namespace gpuwire::software_device {

// The maximum of operations in one call, as on NVIDIA's driver.
inline constexpr unsigned kMemoryOperationsMax = 256;

// Returns CUDA_ERROR_INVALID_VALUE for an unknown operation or flag, and for a word that is not aligned or not in the
// device's memory.
tl::expected<MemoryOperationsWork, CUresult> check_memory_operations(const CUstreamBatchMemOpParams* operations,
                                                                     unsigned count, unsigned flags);

// Returns whether the memory of all words supports such operations now. Memory of pools, memory of graphs and managed
// memory do not: a call in a stream, and the launch of a graph with such operations, return CUDA_ERROR_INVALID_VALUE,
// but the graph can be built (measured on driver 580).
bool have_words(const MemoryOperationsWork& work);

// Executes the operations in the calling thread, which waits until the words have their values. A fault or the end of
// the context ends the wait.
CUresult carry_out_memory_operations(const Context& context, const MemoryOperationsWork& work);

}  // namespace gpuwire::software_device
