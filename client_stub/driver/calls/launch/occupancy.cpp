// Occupancy: the calls.
#include <algorithm>
#include <cstdint>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/launch/occupancy.hpp"
#include "client_stub/driver/state/launch/occupancy_question.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/stream/stream.hpp"

namespace gpuwire::client {
namespace {

// Replaces a stream of the current context by NULL, which has the same meaning, so that every process asks the same
// question.
CUlaunchConfig without_stream_of_current_context(const Caller& caller, CUlaunchConfig config) {
  const StreamState* stream = find_stream(caller.state, reinterpret_cast<uint64_t>(config.hStream));
  if (stream && stream->context == caller.state) config.hStream = nullptr;
  return config;
}

// Finds the block size with the most threads per multiprocessor, the largest of several equal ones. The CUDA C++
// Programming Guide describes the search under "Occupancy Calculator": block sizes are tried downwards in steps of a
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

using AskAboutClusters = CUresult(const Caller&, int*, CUfunction, const CUlaunchConfig*);

// Answers a question about clusters, if possible from the stored answers. `unkept` sends a question that is too long to
// be stored.
CUresult about_clusters(const Caller& caller, OccupancyKind kind, int* out, CUfunction func,
                        const CUlaunchConfig* config, AskAboutClusters& unkept) {
  if (config->numAttrs > 0 && !config->attrs) return CUDA_ERROR_INVALID_VALUE;
  FunctionState* function = find_launchable(func);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (config->numAttrs > kOccupancyQuestionBytesMax / sizeof *config->attrs) {
    const CUlaunchConfig asked = without_null_stream(*config);
    return unkept(caller, out, func, &asked);
  }
  OccupancyQuestion question;
  question.kind = kind;
  question.config = without_stream_of_current_context(caller, *config);
  if (config->numAttrs > 0) question.attributes.assign(config->attrs, config->attrs + config->numAttrs);
  const OccupancyAnswer found = occupancy_answer(caller, *function, question);
  if (!found.result) *out = int(found.value);
  return found.result;
}

}  // namespace

namespace hand {

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(const Caller& caller, int* numBlocks, CUfunction func,
                                                              int blockSize, size_t dynamicSMemSize,
                                                              unsigned int flags) {
  if (!numBlocks || blockSize <= 0) return CUDA_ERROR_INVALID_VALUE;
  FunctionState* function = find_launchable(func);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  return occupancy_blocks(caller, *function, blockSize, dynamicSMemSize, flags, *numBlocks);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(const Caller& caller, int* numBlocks, CUfunction func,
                                                     int blockSize, size_t dynamicSMemSize) {
  return hand::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(caller, numBlocks, func, blockSize, dynamicSMemSize,
                                                                    CU_OCCUPANCY_DEFAULT);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(const Caller& caller, size_t* dynamicSmemSize, CUfunction func,
                                                 int numBlocks, int blockSize) {
  if (!dynamicSmemSize || blockSize <= 0 || numBlocks <= 0) return CUDA_ERROR_INVALID_VALUE;
  FunctionState* function = find_launchable(func);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  OccupancyQuestion question;
  question.kind = OccupancyKind::dynamic_bytes;
  question.block_threads = unsigned(blockSize);
  question.number = uint64_t(numBlocks);
  const OccupancyAnswer found = occupancy_answer(caller, *function, question);
  if (!found.result) *dynamicSmemSize = size_t(found.value);
  return found.result;
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(const Caller& caller, int* minGridSize, int* blockSize,
                                                   CUfunction func, CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit, unsigned int flags) {
  if (!minGridSize || !blockSize || blockSizeLimit < 0) return CUDA_ERROR_INVALID_VALUE;
  FunctionState* function = find_launchable(func);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  return best_block(caller, *function, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit, flags, *minGridSize,
                    *blockSize);
}

CUresult cuOccupancyMaxPotentialBlockSize(const Caller& caller, int* minGridSize, int* blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
                                          int blockSizeLimit) {
  return hand::cuOccupancyMaxPotentialBlockSizeWithFlags(caller, minGridSize, blockSize, func,
                                                         blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit,
                                                         CU_OCCUPANCY_DEFAULT);
}

CUresult cuOccupancyMaxActiveClusters(const Caller& caller, int* numClusters, CUfunction func,
                                      const CUlaunchConfig* config) {
  return about_clusters(caller, OccupancyKind::active_clusters, numClusters, func, config,
                        forward::cuOccupancyMaxActiveClusters);
}

CUresult cuOccupancyMaxPotentialClusterSize(const Caller& caller, int* clusterSize, CUfunction func,
                                            const CUlaunchConfig* config) {
  return about_clusters(caller, OccupancyKind::cluster_size, clusterSize, func, config,
                        forward::cuOccupancyMaxPotentialClusterSize);
}

}  // namespace hand
}  // namespace gpuwire::client
