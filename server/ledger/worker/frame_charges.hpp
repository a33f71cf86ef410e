// The memory of a kernel's first launch: local memory, if its threads need more than any before, for all threads that
// can be resident (29 GiB for frames of 128 KiB on an H200), which the driver keeps; and a place for its library.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace gpuwire::server {

struct LedgerParts;

// Any thread; a launch of a function that was launched before costs one question for the current context and one load.
class FrameCharges {
 public:
  explicit FrameCharges(LedgerParts& parts) : parts_(parts) {}

  // Before a function is launched, or made a node, in the current context. Not CUDA_SUCCESS: its memory does not fit.
  CUresult reserve(CUfunction function) {
    uint64_t key = 0;
    if (seen(function, key)) [[likely]]
      return CUDA_SUCCESS;
    return inspect(function, key);
  }
  // The same in `context`, or in the current one when that is null.
  CUresult reserve(CUfunction function, CUcontext context);
  // Functions may be gone, and others have their handles.
  void forget();

 private:
  static constexpr size_t kSeenMax = 4096;

  bool seen(CUfunction function, uint64_t& key) const;
  CUresult inspect(CUfunction function, uint64_t key);
  CUresult reserve_frame(CUfunction function);

  LedgerParts& parts_;
  // Functions that have been looked at, with their contexts, by hash. Relaxed: an entry says nothing but itself, and a
  // lost one costs a second look.
  std::array<std::atomic<uint64_t>, kSeenMax> seen_{};
};

}  // namespace gpuwire::server
