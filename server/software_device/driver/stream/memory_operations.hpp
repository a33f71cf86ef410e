// Operations of a stream on single words: waiting until one has a value, and writing one (CUDA driver API, "Stream
// memory operations").
#pragma once

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/driver/stream/stream_work.hpp"

namespace gpuwire::software_device {

// Operations in one call at most, as with NVIDIA's driver.
inline constexpr unsigned kMemoryOperationsMax = 256;

// CUDA_ERROR_INVALID_VALUE: an unknown operation or flag, a word that is not aligned or lies in no memory of the
// device.
tl::expected<MemoryOperationsWork, CUresult> check_memory_operations(const CUstreamBatchMemOpParams* operations,
                                                                     unsigned count, unsigned flags);

// Whether the memory of all words holds such words at this moment: memory of pools and of graphs and managed memory
// does not. Operations on them are CUDA_ERROR_INVALID_VALUE, from the call in a stream and from the launch of a graph
// that has them, which can be made (as measured on driver 580).
bool have_words(const MemoryOperationsWork& work);

// In the calling thread, which stands at a word that has not its value; a fault or the end of the context lets it go.
CUresult carry_out_memory_operations(const Context& context, const MemoryOperationsWork& work);

}  // namespace gpuwire::software_device
