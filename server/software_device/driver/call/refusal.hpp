// The missing features of this device, in words: a line on standard error beside the error code, which alone names
// nothing.
#pragma once

#include <cstddef>
#include <string_view>

#include <cuda.h>

namespace gpuwire::software_device {

// How many different lines a process writes at most: a program that tries everything must not drown in them.
inline constexpr size_t kRefusalsToldMax = 64;

// Writes "gpuwire software device: <reason>", once for each reason. Any thread.
void log_refusal(std::string_view reason) noexcept;

// The same for "<what> is not supported". CUDA_ERROR_NOT_SUPPORTED.
CUresult not_supported(std::string_view what) noexcept;

}  // namespace gpuwire::software_device
