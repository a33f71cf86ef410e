// Charges of a kernel's first launch: local memory for all threads that can be resident, if its threads need more than
// any before (29 GiB for frames of 128 KiB on an H200), which the driver keeps; and the memory of its library in the
// context.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace gpuwire::server {

struct LedgerParts;

// Any thread; a repeated launch of a function costs one query of the current context and one load.
class FrameCharges {
 public:
  explicit FrameCharges(LedgerParts& parts) : parts_(parts) {}

  // Reserves a function's memory in the current context, before it is launched or made a node. Not CUDA_SUCCESS: the
  // memory does not fit.
  CUresult reserve(CUfunction function) {
    uint64_t key = 0;
    if (seen(function, key)) [[likely]]
      return CUDA_SUCCESS;
    return inspect(function, key);
  }
  // reserve() in `context`, or in the current context if that is null.
  CUresult reserve(CUfunction function, CUcontext context);
  // Forgets all functions, since some may have been unloaded and their handles reused.
  void forget();

 private:
  static constexpr size_t kSeenMax = 4096;

  bool seen(CUfunction function, uint64_t& key) const;
  CUresult inspect(CUfunction function, uint64_t key);
  CUresult reserve_frame(CUfunction function);

  LedgerParts& parts_;
  // Inspected functions with their contexts, by hash. Relaxed: no other data depends on an entry, and a lost entry only
  // costs a second inspection.
  std::array<std::atomic<uint64_t>, kSeenMax> seen_{};
};

}  // namespace gpuwire::server
