// ProcessCheckpoint is this process's checkpoint state, with the step from each state to the next.
#pragma once

#include <cuda.h>

#include "server/software_device/driver/checkpoint/api_gate.hpp"
#include "server/software_device/driver/checkpoint/device_storage.hpp"

namespace gpuwire::software_device {

// Thread: the checkpoint service's; any thread may use the gate and the storage. A step that is not valid in the
// present state returns CUDA_ERROR_ILLEGAL_STATE.
class ProcessCheckpoint {
 public:
  // `used`: other processes may request checkpoints.
  explicit ProcessCheckpoint(bool used) : gate(used) {}

  ApiGate gate;
  DeviceStorage storage;

  CUprocessState state() const { return state_; }
  // Blocks further calls and waits until all work is done. Returns CUDA_ERROR_NOT_READY after `timeout_ms`; 0: no
  // limit.
  CUresult lock(unsigned timeout_ms);
  CUresult checkpoint();
  CUresult restore();
  CUresult unlock();

 private:
  CUprocessState state_ = CU_PROCESS_STATE_RUNNING;
};

}  // namespace gpuwire::software_device
