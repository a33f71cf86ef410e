#include "client_stub/driver/launch/occupancy.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "client/forward.hpp"
#include "client/hand.hpp"
#include "client_stub/driver/session/process.hpp"

namespace gpuwire::client {
namespace {

enum class Question : uint64_t { blocks = 0, dynamic_bytes = 1, active_clusters = 2, cluster_size = 3 };

// The answer from the function's cache, or `ask`ed and kept.
template <class Ask>
CUresult answer(FunctionState& function, std::string_view question, uint64_t& value, Ask&& ask) {
  if (function.kernels_library()) return ask();
  uint64_t settings = 0;
  if (function.occupancy.find(question, value, settings)) return CUDA_SUCCESS;
  CUresult result = ask();
  if (!result) function.occupancy.keep(question, value, settings);
  return result;
}

using Numbers = std::array<uint64_t, 4>;

std::string_view bytes_of(const Numbers& question) {
  return {reinterpret_cast<const char*>(question.data()), sizeof question};
}

uint64_t topic(Question question, const Caller& caller, unsigned flags) {
  return uint64_t(question) << 56 | uint64_t(uint16_t(caller.state->device)) << 32 | flags;
}

CUfunction as_function(const FunctionState& function) { return reinterpret_cast<CUfunction>(function.handle); }

}  // namespace

CUresult occupancy_blocks(const Caller& caller, FunctionState& function, int block_threads, size_t dynamic_bytes,
                          unsigned flags, int& blocks) {
  uint64_t value = 0;
  const Numbers question{topic(Question::blocks, caller, flags), uint64_t(block_threads), dynamic_bytes, 0};
  CUresult result = answer(function, bytes_of(question), value, [&] {
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

// The whole configuration, as it lies in memory: what does not count may cost a question, but never gives a wrong
// answer. The current context counts, too: a green one has fewer multiprocessors. Empty: more than is kept.
std::string question_about(Question question, const Caller& caller, const CUlaunchConfig& config) {
  const size_t attributes_bytes = size_t(config.numAttrs) * sizeof *config.attrs;
  const std::array<uint64_t, 7> numbers{topic(question, caller, 0),
                                        caller.context_handle,
                                        uint64_t(config.gridDimX) << 32 | config.gridDimY,
                                        uint64_t(config.gridDimZ) << 32 | config.blockDimX,
                                        uint64_t(config.blockDimY) << 32 | config.blockDimZ,
                                        config.sharedMemBytes,
                                        reinterpret_cast<uint64_t>(config.hStream)};
  std::string out;
  if (sizeof numbers + attributes_bytes > kOccupancyQuestionBytesMax) return out;
  out.reserve(sizeof numbers + attributes_bytes);
  out.append(reinterpret_cast<const char*>(numbers.data()), sizeof numbers);
  if (attributes_bytes > 0) out.append(reinterpret_cast<const char*>(config.attrs), attributes_bytes);
  return out;
}

template <class Ask>
CUresult about_clusters(Question question, int* out, CUfunction func, const CUlaunchConfig* config, Ask&& ask) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  if (!out || !config || (config->numAttrs > 0 && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  if (!func) return CUDA_ERROR_INVALID_VALUE;  // no unknown function, as it is elsewhere (measured on driver 580)
  FunctionState* function = find_launchable(func);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const std::string asked = question_about(question, caller, *config);
  if (asked.empty()) return leave(caller, ask(caller, out, func, config));
  uint64_t value = 0;
  CUresult result = answer(*function, asked, value, [&] {
    int answered = 0;
    CUresult error = ask(caller, &answered, func, config);
    value = uint64_t(answered);
    return error;
  });
  if (!result) *out = int(value);
  return leave(caller, result);
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
  const Numbers question{topic(Question::dynamic_bytes, caller, 0), uint64_t(blockSize), uint64_t(numBlocks), 0};
  CUresult result = answer(*function, bytes_of(question), value, [&] {
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

CUresult cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func, const CUlaunchConfig* config) {
  return about_clusters(Question::active_clusters, numClusters, func, config, forward::cuOccupancyMaxActiveClusters);
}

CUresult cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func, const CUlaunchConfig* config) {
  return about_clusters(Question::cluster_size, clusterSize, func, config, forward::cuOccupancyMaxPotentialClusterSize);
}

}  // namespace hand
}  // namespace gpuwire::client
