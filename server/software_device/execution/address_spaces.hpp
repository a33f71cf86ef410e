// The windows of the generic address space. Their tags are in address bits that no host mapping has, so an address
// itself shows whether it is a thread's, a block's or the device's.
#pragma once

#include <cstdint>

namespace gpuwire::software_device {

inline constexpr unsigned kWindowShift = 48;
inline constexpr uint64_t kSharedWindow = uint64_t{0x0100} << kWindowShift;
inline constexpr uint64_t kLocalWindow = uint64_t{0x0200} << kWindowShift;
inline constexpr uint64_t kParameterWindow = uint64_t{0x0300} << kWindowShift;
inline constexpr uint64_t kWindowMask = uint64_t{0xffff} << kWindowShift;

// In an address of shared memory, these bits contain the rank of a block of the cluster plus one; zero means the own
// block. Shared memory is far smaller than the value of the lowest of these bits.
inline constexpr unsigned kClusterRankShift = 24;
inline constexpr uint64_t kClusterRankMask = uint64_t{0xff} << kClusterRankShift;

}  // namespace gpuwire::software_device
