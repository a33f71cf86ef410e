// Attributes of a function that are set for a while, so that the driver can be asked about occupancy with them.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

namespace gpuwire::server {

class Replay;

// Of one session; executor thread only.
class TriedAttributes {
 public:
  struct Setting {
    CUfunction_attribute attribute;
    int value;
  };

  // Restores the attributes of the last call, then sets these on the function or kernel of that handle; on a kernel for
  // the device of the current context. If one cannot be set, all stay as they were. Without settings the handle does
  // not count, and the result says whether everything since the last call of this kind was restored.
  CUresult try_out(Replay& replay, uint64_t handle, const std::vector<Setting>& settings);

 private:
  void put_back(Replay& replay);

  uint64_t handle_ = 0;
  void* function_ = nullptr;
  CUdevice device_ = 0;           // of a kernel
  std::vector<Setting> earlier_;  // newest last
  CUresult not_put_back_ = CUDA_SUCCESS;
};

}  // namespace gpuwire::server
