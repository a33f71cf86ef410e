// Limits of the resources of a PTX text, which comes from a program that the server does not trust.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::software_device::ptx {

inline constexpr size_t kTextBytesMax = size_t{256} << 20;
inline constexpr size_t kTextsMax = 4096;
inline constexpr uint32_t kRegistersPerFunctionMax = 1u << 20;
inline constexpr uint32_t kScopeDepthMax = 64;
inline constexpr uint32_t kExpressionDepthMax = 64;
inline constexpr uint32_t kOperandsMax = 64;
inline constexpr uint32_t kParametersMax = 4096;
inline constexpr uint32_t kParameterBytesMax = 32764;  // of a kernel; PTX ISA 5.1.6
inline constexpr uint64_t kVariableBytesMax = uint64_t{1} << 40;
inline constexpr uint64_t kInitialiserBytesMax = uint64_t{1} << 28;
inline constexpr uint64_t kSharedBytesMax = 256u << 10;
inline constexpr uint64_t kLocalBytesMax = 512u << 10;  // of a thread (compute capability table, CUDA C++ guide)
inline constexpr uint32_t kAlignmentMax = 4096;
inline constexpr uint32_t kErrorsMax = 20;

}  // namespace gpuwire::software_device::ptx
