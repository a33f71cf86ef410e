// Local memory of kernels: a launch whose threads need more than any before makes the driver take it for all threads
// that can be resident (29 GiB for frames of 128 KiB on an H200), and keep it.
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

  // Before a function is launched, or made a node, in the current context. Not CUDA_SUCCESS: its frames do not fit.
  CUresult reserve(CUfunction function) {
    uint64_t key = 0;
    if (seen(function, key)) [[likely]]
      return CUDA_SUCCESS;
    return look(function, key);
  }
  // Functions may be gone, and others have their handles.
  void forget();

 private:
  static constexpr size_t kSeenMax = 4096;

  bool seen(CUfunction function, uint64_t& key) const;
  CUresult look(CUfunction function, uint64_t key);

  LedgerParts& parts_;
  // Functions that have been looked at, with their contexts, by hash. Relaxed: an entry says nothing but itself, and a
  // lost one costs a second look.
  std::array<std::atomic<uint64_t>, kSeenMax> seen_{};
};

}  // namespace gpuwire::server
