// The type of GPU that a program requests, as both ends interpret it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace gpuwire::wire {

inline constexpr size_t kGpuTypeBytesMax = 64;

// Returns whether a GPU's name contains the type, ignoring case: "h200" is in "NVIDIA H200". Every name contains an
// empty type.
inline bool is_of_type(std::string_view gpu_name, std::string_view type) {
  auto lower = [](char byte) { return byte >= 'A' && byte <= 'Z' ? char(byte - 'A' + 'a') : byte; };
  return std::search(gpu_name.begin(), gpu_name.end(), type.begin(), type.end(),
                     [&](char a, char b) { return lower(a) == lower(b); }) != gpu_name.end() ||
         type.empty();
}

}  // namespace gpuwire::wire
