// Messages about missing features of this device: a line on standard error beside the error code, which alone does not
// name the feature.
#pragma once

#include <cstddef>
#include <string_view>

#include <cuda.h>

namespace gpuwire::software_device {

// The maximum of different lines that a process writes, so that a program that tries every feature is not flooded.
inline constexpr size_t kRefusalsToldMax = 64;

// Writes "gpuwire software device: <reason>", once for each reason. Thread: any.
void log_refusal(std::string_view reason) noexcept;

// Logs "<what> is not supported" in the same way. Returns CUDA_ERROR_NOT_SUPPORTED.
CUresult not_supported(std::string_view what) noexcept;

}  // namespace gpuwire::software_device
