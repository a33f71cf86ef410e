#include "leftovers.hpp"

#include <algorithm>
#include <array>

#include "callbacks.hpp"

namespace differential {
namespace {

// The driver's documentation of CUresult says of these that the context is no longer usable and the process has to be
// launched anew.
constexpr std::array<std::string_view, 11> kSticky = {
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_UNKNOWN",
};

}  // namespace

void Leftovers::note(std::string_view name, const std::vector<Argument>& arguments, const Outcome& outcome) {
  sticky_ = sticky_ || std::ranges::find(kSticky, outcome.name) != kSticky.end();
  if (name == "cuCtxSynchronize") unsettled_ = !outcome.success;
  if (name == "cuStreamSynchronize" && !outcome.success) unsettled_ = true;
  if (!outcome.success || arguments.empty()) return;
  if (name.starts_with("cuCtxCreate")) {
    contexts_.push_back(*arguments[0].as<const uint64_t*>());
  } else if (name == "cuCtxDestroy_v2") {
    std::erase(contexts_, arguments[0].word);
  } else if (name == "cuDevicePrimaryCtxRetain") {
    ++retained_;
  } else if (name == "cuDevicePrimaryCtxRelease_v2") {
    --retained_;
  }
}

void Leftovers::clear() {
  for (uint64_t context : contexts_) make_call("cuCtxDestroy_v2", {{.word = context}});
  make_call("cudaDeviceReset", {});
  for (; retained_ > 0; --retained_) make_call("cuDevicePrimaryCtxRelease_v2", {{.word = 0}});
  contexts_.clear();
  make_call("cudaGetLastError", {});
  reset_callback_counts();
}

}  // namespace differential
