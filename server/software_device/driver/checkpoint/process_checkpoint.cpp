#include "server/software_device/driver/checkpoint/process_checkpoint.hpp"

#include <algorithm>
#include <chrono>

#include "server/software_device/driver/call/driver_state.hpp"

namespace gpuwire::software_device {
namespace {

bool work_ends(const ApiGate::Deadline& deadline) {
  using std::chrono::milliseconds;
  for (const auto& slot : driver().contexts.all()) {
    const auto context = slot->live();
    if (context == nullptr) continue;
    const OperationPtr last = context->mark_everything();
    if (!deadline) {
      driver().scheduler.wait(*last);
      continue;
    }
    const auto left = std::chrono::ceil<milliseconds>(*deadline - std::chrono::steady_clock::now());
    if (!driver().scheduler.wait_for(*last, std::max(left, milliseconds(0)))) return false;
  }
  return true;
}

bool has_managed_memory() {
  return !driver().memory.select([](const MemoryRange& range) { return range.kind == MemoryKind::managed; }).empty();
}

}  // namespace

CUresult ProcessCheckpoint::lock(unsigned timeout_ms) {
  if (state_ != CU_PROCESS_STATE_RUNNING) return CUDA_ERROR_ILLEGAL_STATE;
  ApiGate::Deadline deadline;
  if (timeout_ms != 0) deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  if (!gate.lock(deadline)) return CUDA_ERROR_NOT_READY;
  if (!work_ends(deadline)) {
    gate.unlock();
    return CUDA_ERROR_NOT_READY;
  }
  state_ = CU_PROCESS_STATE_LOCKED;
  return CUDA_SUCCESS;
}

CUresult ProcessCheckpoint::checkpoint() {
  if (state_ != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
  if (has_managed_memory()) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult result = storage.evict();
  if (result == CUDA_SUCCESS) state_ = CU_PROCESS_STATE_CHECKPOINTED;
  return result;
}

CUresult ProcessCheckpoint::restore() {
  if (state_ != CU_PROCESS_STATE_CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;
  const CUresult result = storage.bring_back();
  if (result == CUDA_SUCCESS) state_ = CU_PROCESS_STATE_LOCKED;
  else if (result != CUDA_ERROR_OUT_OF_MEMORY) state_ = CU_PROCESS_STATE_FAILED;
  return result;
}

CUresult ProcessCheckpoint::unlock() {
  if (state_ != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
  state_ = CU_PROCESS_STATE_RUNNING;
  gate.unlock();
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::software_device
