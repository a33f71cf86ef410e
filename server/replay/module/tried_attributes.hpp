// Function attributes that are set temporarily for occupancy queries of the driver.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

namespace gpuwire::server {

class Replay;

// One per session; executor thread only.
class TriedAttributes {
 public:
  struct Setting {
    CUfunction_attribute attribute;
    int value;
  };

  // Restores the attributes of the last call, then sets these on the function or kernel of that handle; on a kernel for
  // the device of the current context. If one cannot be set, all stay as they were. Without settings the handle is
  // ignored, and the result says whether all attributes since the last such call were restored.
  CUresult try_out(Replay& replay, uint64_t handle, const std::vector<Setting>& settings);

 private:
  void put_back(Replay& replay);

  uint64_t handle_ = 0;
  void* function_ = nullptr;
  // The device of a kernel's attributes.
  CUdevice device_ = 0;
  // The newest setting is last.
  std::vector<Setting> earlier_;
  CUresult not_put_back_ = CUDA_SUCCESS;
};

}  // namespace gpuwire::server
