#include "server/suspender/process_move.hpp"

#include <cuda.h>
#include <fmt/format.h>

#include "server/driver/library/driver_library.hpp"
#include "server/driver_table.hpp"

namespace gpuwire::server {
namespace {

using ipc::MoveResult;

const MoveOutcome kGone{MoveResult::gone, "its process has ended"};

// The reason in the words of an administrator, where the driver's code has one meaning here.
std::string meaning_of(CUresult result) {
  switch (result) {
    case CUDA_ERROR_NOT_SUPPORTED: return "the driver cannot move a session with managed memory";
    case CUDA_ERROR_NOT_READY: return fmt::format("its work did not end within {} s", kLockMs / 1000);
    case CUDA_ERROR_NOT_PERMITTED: return "its process has another user than gpuwire-suspender";
    default: return {};
  }
}

}  // namespace

std::string why_no_moves(const DriverTable& driver) {
  if (driver.cuCheckpointProcessGetState && driver.cuCheckpointProcessLock && driver.cuCheckpointProcessCheckpoint &&
      driver.cuCheckpointProcessRestore && driver.cuCheckpointProcessUnlock)
    return {};
  return "the driver has no checkpoints of processes: NVIDIA's has them from version 570 on";
}

std::string ProcessMove::failed(const char* call, int result) const {
  std::string meaning = meaning_of(CUresult(result));
  if (!meaning.empty()) return meaning;
  return fmt::format("{}: {}", call, describe_result(driver_, CUresult(result)));
}

MoveOutcome ProcessMove::unlock() {
  if (!alive_()) return kGone;
  if (const CUresult result = driver_.cuCheckpointProcessUnlock(process_, nullptr))
    return {MoveResult::lost, failed("cuCheckpointProcessUnlock", result)};
  return {};
}

MoveOutcome ProcessMove::refuse(std::string why) {
  MoveOutcome unlocked = unlock();
  if (unlocked.result != MoveResult::done) return unlocked;
  return {MoveResult::refused, std::move(why)};
}

MoveOutcome ProcessMove::to_host() {
  if (!alive_()) return kGone;
  CUprocessState state = CU_PROCESS_STATE_RUNNING;
  if (const CUresult result = driver_.cuCheckpointProcessGetState(process_, &state))
    return {MoveResult::refused, failed("cuCheckpointProcessGetState", result)};
  if (state == CU_PROCESS_STATE_CHECKPOINTED) return {};
  if (state == CU_PROCESS_STATE_FAILED) return {MoveResult::lost, "the driver has lost its device memory"};
  if (state == CU_PROCESS_STATE_RUNNING) {
    CUcheckpointLockArgs bound{};
    bound.timeoutMs = kLockMs;
    if (!alive_()) return kGone;
    if (const CUresult result = driver_.cuCheckpointProcessLock(process_, &bound))
      return {MoveResult::refused, failed("cuCheckpointProcessLock", result)};
  }
  if (!alive_()) return kGone;
  if (const CUresult result = driver_.cuCheckpointProcessCheckpoint(process_, nullptr))
    return refuse(failed("cuCheckpointProcessCheckpoint", result));
  return {};
}

MoveOutcome ProcessMove::to_device() {
  if (!alive_()) return kGone;
  CUprocessState state = CU_PROCESS_STATE_RUNNING;
  if (const CUresult result = driver_.cuCheckpointProcessGetState(process_, &state))
    return {MoveResult::lost, failed("cuCheckpointProcessGetState", result)};
  if (state == CU_PROCESS_STATE_RUNNING) return {};
  if (state == CU_PROCESS_STATE_FAILED) return {MoveResult::lost, "the driver has lost its device memory"};
  if (state == CU_PROCESS_STATE_CHECKPOINTED) {
    if (!alive_()) return kGone;
    const CUresult result = driver_.cuCheckpointProcessRestore(process_, nullptr);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return {MoveResult::no_room, "the device has too little free memory"};
    if (result) return {MoveResult::lost, failed("cuCheckpointProcessRestore", result)};
  }
  return unlock();
}

}  // namespace gpuwire::server
