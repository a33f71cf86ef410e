// The exported functions of checkpoints. None of them waits at the gate that they lock.
#include <cstring>

#include "server/software_device/driver/call/driver_state.hpp"
#include "server/software_device/driver/call/refusal.hpp"
#include "server/software_device/driver/checkpoint/checkpoint_service.hpp"

using namespace gpuwire::software_device;

namespace {

template <typename Words>
bool all_zero(const Words& words) {
  for (const auto word : words)
    if (word != 0) return false;
  return true;
}

CUresult ask_for(int pid, CheckpointStep step, unsigned timeout_ms = 0) noexcept {
  if (const CUresult status = driver_status(); status != CUDA_SUCCESS) return status;
  try {
    const auto answer = ask_process(pid, step, timeout_ms);
    return answer ? CUDA_SUCCESS : answer.error();
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

template <typename Out>
CUresult ask_into(int pid, CheckpointStep step, Out* out) noexcept {
  if (const CUresult status = driver_status(); status != CUDA_SUCCESS) return status;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  try {
    const auto answer = ask_process(pid, step);
    if (!answer) return answer.error();
    *out = static_cast<Out>(*answer);
    return CUDA_SUCCESS;
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

// Returns whether a GPU is mapped to another one. Only identical mappings are supported, because no other GPU is known
// to be free.
bool remaps(const CUcheckpointRestoreArgs& args) {
  for (unsigned i = 0; i < args.gpuPairsCount; ++i)
    if (std::memcmp(&args.gpuPairs[i].oldUuid, &args.gpuPairs[i].newUuid, sizeof(CUuuid)) != 0) return true;
  return false;
}

}  // namespace

CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  return ask_into(pid, CheckpointStep::get_state, state);
}

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  return ask_into(pid, CheckpointStep::get_thread, tid);
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  if (args != nullptr && (args->reserved0 != 0 || !all_zero(args->reserved1))) return CUDA_ERROR_INVALID_VALUE;
  return ask_for(pid, CheckpointStep::lock, args == nullptr ? 0 : args->timeoutMs);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs* args) {
  if (args != nullptr && !all_zero(args->reserved)) return CUDA_ERROR_INVALID_VALUE;
  return ask_for(pid, CheckpointStep::checkpoint);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  if (args != nullptr) {
    const bool pairs_missing = args->gpuPairsCount != 0 && args->gpuPairs == nullptr;
    if (pairs_missing || args->reserved1 != 0 || !all_zero(args->reserved)) return CUDA_ERROR_INVALID_VALUE;
    if (remaps(*args)) return not_supported("a restore onto another GPU");
  }
  return ask_for(pid, CheckpointStep::restore);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* args) {
  if (args != nullptr && !all_zero(args->reserved)) return CUDA_ERROR_INVALID_VALUE;
  return ask_for(pid, CheckpointStep::unlock);
}
