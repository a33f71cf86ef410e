// This process as a checkpoint sees it: in which state it is, and the step from each state to the next.
#pragma once

#include <cuda.h>

#include "server/software_device/driver/checkpoint/api_gate.hpp"
#include "server/software_device/driver/checkpoint/device_storage.hpp"

namespace gpuwire::software_device {

// The checkpoint service's thread only; the gate and the storage are everybody's. A step from a state that it does not
// begin in is CUDA_ERROR_ILLEGAL_STATE.
class ProcessCheckpoint {
 public:
  // `used`: other processes may ask for it.
  explicit ProcessCheckpoint(bool used) : gate(used) {}

  ApiGate gate;
  DeviceStorage storage;

  CUprocessState state() const { return state_; }
  // Calls wait from now on, and all work is done. CUDA_ERROR_NOT_READY: not within `timeout_ms`; 0: however long.
  CUresult lock(unsigned timeout_ms);
  CUresult checkpoint();
  CUresult restore();
  CUresult unlock();

 private:
  CUprocessState state_ = CU_PROCESS_STATE_RUNNING;
};

}  // namespace gpuwire::software_device
