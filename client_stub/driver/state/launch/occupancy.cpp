#include "client_stub/driver/state/launch/occupancy.hpp"

#include <string>
#include <utility>
#include <vector>

#include "client/forward.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/launch/occupancy_question.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {
namespace {

// The key of a query among a function's answers. For clusters the key has the current context, too: a green context has
// fewer multiprocessors.
std::string kept_by(const Caller& caller, const OccupancyQuestion& question) {
  const uint64_t context = question.about_config() ? caller.context_handle : 0;
  std::string out = question.key();
  for (uint64_t part : {context, uint64_t(caller.state->device)})
    out.append(reinterpret_cast<const char*>(&part), sizeof part);
  return out;
}

CUfunction as_function(const FunctionState& function) { return reinterpret_cast<CUfunction>(function.handle); }

// Sends the query; finish() waits for the answer.
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

}  // namespace

CUlaunchConfig without_null_stream(CUlaunchConfig config) {
  if (!config.hStream || config.hStream == CU_STREAM_LEGACY) config.hStream = CU_STREAM_PER_THREAD;
  return config;
}

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

OccupancyAnswer occupancy_answer(const Caller& caller, FunctionState& function, const OccupancyQuestion& question) {
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

CUresult occupancy_blocks(const Caller& caller, FunctionState& function, int block_threads, size_t dynamic_bytes,
                          unsigned flags, int& blocks) {
  OccupancyQuestion question;
  question.kind = OccupancyKind::blocks;
  question.flags = flags;
  question.block_threads = unsigned(block_threads);
  question.number = dynamic_bytes;
  const OccupancyAnswer found = occupancy_answer(caller, function, question);
  if (!found.result) blocks = int(found.value);
  return found.result;
}

}  // namespace gpuwire::client
