#include "client_stub/driver/launch/occupancy.hpp"

#include <algorithm>

#include "client/forward.hpp"
#include "client/hand.hpp"
#include "client_stub/driver/session/process.hpp"

namespace gpuwire::client {
namespace {

enum class Question : uint64_t { blocks = 0, dynamic_bytes = 1 };

// The answer from the function's cache, or `ask`ed and kept.
template <class Ask>
CUresult answer(FunctionState& function, std::array<uint64_t, 4> key, uint64_t& value, Ask&& ask) {
  {
    std::lock_guard lock(function.mutex);
    if (auto known = function.occupancy.find(key); known != function.occupancy.end()) {
      value = known->second;
      return CUDA_SUCCESS;
    }
  }
  CUresult result = ask();
  if (result) return result;
  std::lock_guard lock(function.mutex);
  if (function.occupancy.size() >= kOccupancyAnswersMax) function.occupancy.clear();
  function.occupancy.emplace(key, value);
  return CUDA_SUCCESS;
}

uint64_t topic(Question question, const Caller& caller, unsigned flags) {
  return uint64_t(question) << 56 | uint64_t(uint16_t(caller.state->device)) << 32 | flags;
}

CUfunction as_function(const FunctionState& function) { return reinterpret_cast<CUfunction>(function.handle); }

}  // namespace

CUresult occupancy_blocks(const Caller& caller, FunctionState& function, int block_threads, size_t dynamic_bytes,
                          unsigned flags, int& blocks) {
  uint64_t value = 0;
  CUresult result =
      answer(function, {topic(Question::blocks, caller, flags), uint64_t(block_threads), dynamic_bytes, 0}, value, [&] {
        int asked = 0;
        CUresult error = forward::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            caller, &asked, as_function(function), block_threads, dynamic_bytes, flags);
        value = uint64_t(asked);
        return error;
      });
  if (!result) blocks = int(value);
  return result;
}

namespace {

// The block size with the most threads per multiprocessor, the largest of those that are equal: the search that the
// CUDA C++ Programming Guide describes under "Occupancy Calculator". Block sizes are tried downwards in steps of a
// warp.
CUresult best_block(const Caller& caller, FunctionState& function, CUoccupancyB2DSize shared_for, size_t shared,
                    int limit, unsigned flags, int& grid, int& block) {
  const auto& attributes = process()->devices[size_t(caller.state->device)].facts->attributes;
  if (attributes.size() <= CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) return CUDA_ERROR_NOT_SUPPORTED;
  int warp = std::max(attributes[CU_DEVICE_ATTRIBUTE_WARP_SIZE], 1);
  int device = caller.state->device, threads_max = attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK],
      function_max = 0;
  if (CUresult error =
          function_attribute(caller, function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device, function_max))
    return error;
  threads_max = std::min(threads_max, function_max);
  if (limit > 0) threads_max = std::min(threads_max, limit);
  int best_threads = 0, best_blocks = 0;
  block = 0;
  for (int aligned = (threads_max + warp - 1) / warp * warp; aligned > 0; aligned -= warp) {
    int size = std::min(aligned, threads_max), blocks = 0;
    size_t dynamic = shared_for ? shared_for(size) : shared;
    if (CUresult error = occupancy_blocks(caller, function, size, dynamic, flags, blocks)) return error;
    if (size * blocks > best_threads) {
      best_threads = size * blocks;
      best_blocks = blocks;
      block = size;
    }
    if (best_threads >= attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR]) break;
  }
  grid = best_blocks * attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
  return CUDA_SUCCESS;
}

}  // namespace

namespace hand {

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, CUfunction func, int blockSize,
                                                              size_t dynamicSMemSize, unsigned int flags) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  if (!numBlocks || blockSize <= 0) return CUDA_ERROR_INVALID_VALUE;
  FunctionState* function = find_launchable(func);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  return leave(caller, occupancy_blocks(caller, *function, blockSize, dynamicSMemSize, flags, *numBlocks));
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize) {
  return hand::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize, dynamicSMemSize,
                                                                    CU_OCCUPANCY_DEFAULT);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func, int numBlocks,
                                                 int blockSize) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  if (!dynamicSmemSize || blockSize <= 0 || numBlocks <= 0) return CUDA_ERROR_INVALID_VALUE;
  FunctionState* function = find_launchable(func);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t value = 0;
  CUresult result = answer(
      *function, {topic(Question::dynamic_bytes, caller, 0), uint64_t(blockSize), uint64_t(numBlocks), 0}, value, [&] {
        return forward::cuOccupancyAvailableDynamicSMemPerBlock(caller, &value, as_function(*function), numBlocks,
                                                                blockSize);
      });
  if (!result) *dynamicSmemSize = value;
  return leave(caller, result);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize, CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit, unsigned int flags) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  if (!minGridSize || !blockSize || blockSizeLimit < 0) return CUDA_ERROR_INVALID_VALUE;
  FunctionState* function = find_launchable(func);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  return leave(caller, best_block(caller, *function, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit, flags,
                                  *minGridSize, *blockSize));
}

CUresult cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
                                          int blockSizeLimit) {
  return hand::cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                         dynamicSMemSize, blockSizeLimit, CU_OCCUPANCY_DEFAULT);
}

// Asked each time: the answer depends on the whole configuration, and programs ask once for a kernel.
CUresult cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func, const CUlaunchConfig* config) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  if (!numClusters || !config || (config->numAttrs > 0 && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  if (!find_launchable(func)) return CUDA_ERROR_INVALID_HANDLE;
  return leave(caller, forward::cuOccupancyMaxActiveClusters(caller, numClusters, func, config));
}

CUresult cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func, const CUlaunchConfig* config) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  if (!clusterSize || !config || (config->numAttrs > 0 && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  if (!find_launchable(func)) return CUDA_ERROR_INVALID_HANDLE;
  return leave(caller, forward::cuOccupancyMaxPotentialClusterSize(caller, clusterSize, func, config));
}

}  // namespace hand
}  // namespace gpuwire::client
