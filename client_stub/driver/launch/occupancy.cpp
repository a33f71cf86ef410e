#include "client_stub/driver/launch/occupancy.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/launch/occupancy_question.hpp"
#include "client_stub/driver/session/process.hpp"
#include "client_stub/driver/stream/stream.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {
namespace {

// The question as the answers of a function are kept by it. For clusters the current context counts, too: a green one
// has fewer multiprocessors.
std::string kept_by(const Caller& caller, const OccupancyQuestion& question) {
  const uint64_t context = question.about_config() ? caller.context_handle : 0;
  std::string out = question.key();
  for (uint64_t part : {context, uint64_t(caller.state->device)})
    out.append(reinterpret_cast<const char*>(&part), sizeof part);
  return out;
}

CUfunction as_function(const FunctionState& function) { return reinterpret_cast<CUfunction>(function.handle); }

// The stream of the configuration says which context is meant, and NULL means the current one (CUDA driver API,
// cuOccupancyMaxActiveClusters). No work goes there, so a capture minds nothing: another stream of the current context
// travels in the NULL stream's place.
CUlaunchConfig without_null_stream(CUlaunchConfig config) {
  if (!config.hStream || config.hStream == CU_STREAM_LEGACY) config.hStream = CU_STREAM_PER_THREAD;
  return config;
}

// A stream of the current context has the same meaning as NULL. Without it every process can ask the same question.
CUlaunchConfig without_stream_of_current_context(const Caller& caller, CUlaunchConfig config) {
  const StreamState* stream = find_stream(caller.state, reinterpret_cast<uint64_t>(config.hStream));
  if (stream && stream->context == caller.state) config.hStream = nullptr;
  return config;
}

// Sends the question, whose answer finish() waits for.
CUresult begin(const Caller& caller, const FunctionState& function, const OccupancyQuestion& question,
               uint64_t& sequence) {
  const CUfunction func = as_function(function);
  const int threads = int(question.block_threads);
  CUlaunchConfig config = without_null_stream(question.config);
  config.attrs = const_cast<CUlaunchAttribute*>(question.attributes.data());
  config.numAttrs = unsigned(question.attributes.size());
  switch (question.kind) {
    case OccupancyKind::blocks:
      return forward::begin_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(caller, func, threads, question.number,
                                                                                 question.flags, sequence);
    case OccupancyKind::dynamic_bytes:
      return forward::begin_cuOccupancyAvailableDynamicSMemPerBlock(caller, func, int(question.number), threads,
                                                                    sequence);
    case OccupancyKind::active_clusters:
      return forward::begin_cuOccupancyMaxActiveClusters(caller, func, &config, sequence);
    case OccupancyKind::cluster_size:
      return forward::begin_cuOccupancyMaxPotentialClusterSize(caller, func, &config, sequence);
  }
  return CUDA_ERROR_UNKNOWN;
}

OccupancyAnswer finish(const Caller& caller, OccupancyKind kind, uint64_t sequence) {
  if (kind == OccupancyKind::dynamic_bytes) {
    size_t bytes = 0;
    const CUresult result = forward::finish_cuOccupancyAvailableDynamicSMemPerBlock(caller, sequence, &bytes);
    return {result, result ? 0 : bytes};
  }
  const auto finish_number =
      kind == OccupancyKind::blocks            ? forward::finish_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
      : kind == OccupancyKind::active_clusters ? forward::finish_cuOccupancyMaxActiveClusters
                                               : forward::finish_cuOccupancyMaxPotentialClusterSize;
  int number = 0;
  const CUresult result = finish_number(caller, sequence, &number);
  return {result, result ? 0 : uint64_t(number)};
}

OccupancyAnswer ask(const Caller& caller, const FunctionState& function, const OccupancyQuestion& question) {
  uint64_t sequence = 0;
  if (CUresult error = begin(caller, function, question, sequence)) return {error, 0};
  return finish(caller, question.kind, sequence);
}

// The answer from the function's cache, or from the server and kept.
OccupancyAnswer answer(const Caller& caller, FunctionState& function, const OccupancyQuestion& question) {
  if (function.kernels_library()) return ask(caller, function, question);
  const std::string key = kept_by(caller, question);
  OccupancyAnswer answer;
  OccupancyState state;
  if (function.occupancy.find(key, caller.state->device, answer, state)) return answer;
  OccupancyPrefetch ahead(function);
  if (function.module && function.module->questions) ahead.begin(caller, *function.module->questions, key, state);
  answer = ask(caller, function, question);
  ahead.finish(caller);
  if (!answer.stays()) return answer;
  function.occupancy.keep(key, answer, state);
  if (function.module && function.module->questions)
    function.module->questions->asked(function.name, state.name, question);
  return answer;
}

}  // namespace

void OccupancyPrefetch::begin(const Caller& caller, ProfiledOccupancyQuestions& known, std::string_view now,
                              const OccupancyState& state) {
  for (const OccupancyQuestion& question : known.ahead(function_.name, state.name)) {
    Entry entry{kept_by(caller, question), question.kind, state, tries_.size(), 0};
    OccupancyAnswer known_answer;
    OccupancyState found;
    if (entry.key == now ||
        (tries_.empty() && function_.occupancy.find(entry.key, caller.state->device, known_answer, found)))
      continue;
    if (client::begin(caller, function_, question, entry.sequence)) return;
    entries_.push_back(std::move(entry));
  }
}

bool OccupancyPrefetch::begin_try(const Caller& caller, std::string_view state) {
  std::vector<int32_t> attributes, values;
  if (const auto settings = OccupancySettings::parse(state)) {
    for (const auto& setting : *settings) {
      attributes.push_back(int32_t(setting.attribute));
      values.push_back(setting.value);
    }
  }
  if (attributes.size() > wire::kTriedAttributesMax) return false;
  uint64_t sequence = 0;
  if (send::begin_function_try(*caller.session, caller.context,
                               {.function = function_.handle, .attributes = attributes, .values = values}, sequence))
    return false;
  tries_.push_back(sequence);
  return true;
}

void OccupancyPrefetch::begin_all(const Caller& caller, ProfiledOccupancyQuestions& known) {
  begin(caller, known, {}, {});
  for (const std::string& name : known.states(function_.name)) {
    if (begin_try(caller, name)) begin(caller, known, {}, {.version = 0, .name = name, .certain = true});
  }
  if (!tries_.empty()) taken_back_ = begin_try(caller, {});
}

void OccupancyPrefetch::set_aside(const Caller& caller) const noexcept {
  for (const Entry& entry : entries_) caller.session->set_aside(entry.sequence);
  for (uint64_t sequence : tries_) caller.session->set_aside(sequence);
}

// Answers are read in the order of the questions.
bool OccupancyPrefetch::finish(const Caller& caller) {
  const std::vector<uint64_t> tries = std::exchange(tries_, {});
  size_t tries_read = 0;
  CUresult tried = CUDA_SUCCESS;
  auto read_tries = [&](size_t count) {
    for (; tries_read < count; ++tries_read) tried = send::finish_function_try(*caller.session, tries[tries_read]);
  };
  for (const Entry& entry : std::exchange(entries_, {})) {
    read_tries(entry.tries);
    const OccupancyAnswer answer = client::finish(caller, entry.kind, entry.sequence);
    if (entry.tries == 0) function_.occupancy.keep(entry.key, answer, entry.state);
    else if (!tried) function_.occupancy.keep_prefetched(entry.key, answer, entry.state);
  }
  read_tries(tries.size());
  return tries.empty() || (taken_back_ && tried == CUDA_SUCCESS);
}

CUresult occupancy_blocks(const Caller& caller, FunctionState& function, int block_threads, size_t dynamic_bytes,
                          unsigned flags, int& blocks) {
  OccupancyQuestion question;
  question.kind = OccupancyKind::blocks;
  question.flags = flags;
  question.block_threads = unsigned(block_threads);
  question.number = dynamic_bytes;
  const OccupancyAnswer found = answer(caller, function, question);
  if (!found.result) blocks = int(found.value);
  return found.result;
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

using AskAboutClusters = CUresult(const Caller&, int*, CUfunction, const CUlaunchConfig*);

// `unkept`: asks questions that are too long to be stored.
CUresult about_clusters(OccupancyKind kind, int* out, CUfunction func, const CUlaunchConfig* config,
                        AskAboutClusters& unkept) {
  Caller caller = enter(Needs::context);
  // A function that is NULL is no unknown one, as it is elsewhere (measured on driver 580).
  const bool asks = out && config && func;
  if (CUresult error = argument_first(caller.error, asks ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)) return error;
  if (config->numAttrs > 0 && !config->attrs) return CUDA_ERROR_INVALID_VALUE;
  FunctionState* function = find_launchable(func);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (config->numAttrs > kOccupancyQuestionBytesMax / sizeof *config->attrs) {
    const CUlaunchConfig asked = without_null_stream(*config);
    return leave(caller, unkept(caller, out, func, &asked));
  }
  OccupancyQuestion question;
  question.kind = kind;
  question.config = without_stream_of_current_context(caller, *config);
  if (config->numAttrs > 0) question.attributes.assign(config->attrs, config->attrs + config->numAttrs);
  const OccupancyAnswer found = answer(caller, *function, question);
  if (!found.result) *out = int(found.value);
  return leave(caller, found.result);
}

}  // namespace

namespace custom {

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
  return custom::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize, dynamicSMemSize,
                                                                      CU_OCCUPANCY_DEFAULT);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func, int numBlocks,
                                                 int blockSize) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  if (!dynamicSmemSize || blockSize <= 0 || numBlocks <= 0) return CUDA_ERROR_INVALID_VALUE;
  FunctionState* function = find_launchable(func);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  OccupancyQuestion question;
  question.kind = OccupancyKind::dynamic_bytes;
  question.block_threads = unsigned(blockSize);
  question.number = uint64_t(numBlocks);
  const OccupancyAnswer found = answer(caller, *function, question);
  if (!found.result) *dynamicSmemSize = size_t(found.value);
  return leave(caller, found.result);
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
  return custom::cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                           dynamicSMemSize, blockSizeLimit, CU_OCCUPANCY_DEFAULT);
}

CUresult cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func, const CUlaunchConfig* config) {
  return about_clusters(OccupancyKind::active_clusters, numClusters, func, config,
                        forward::cuOccupancyMaxActiveClusters);
}

CUresult cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func, const CUlaunchConfig* config) {
  return about_clusters(OccupancyKind::cluster_size, clusterSize, func, config,
                        forward::cuOccupancyMaxPotentialClusterSize);
}

}  // namespace custom
}  // namespace gpuwire::client
