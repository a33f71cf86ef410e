// The type of GPU that a program asks for, as both ends understand it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace gpuwire::wire {

inline constexpr size_t kGpuTypeBytesMax = 64;

// Whether a GPU's name has the type in it, whatever the case of its letters: "h200" is in "NVIDIA H200". An empty type
// is in every name.
inline bool is_of_type(std::string_view gpu_name, std::string_view type) {
  auto lower = [](char byte) { return byte >= 'A' && byte <= 'Z' ? char(byte - 'A' + 'a') : byte; };
  return std::search(gpu_name.begin(), gpu_name.end(), type.begin(), type.end(),
                     [&](char a, char b) { return lower(a) == lower(b); }) != gpu_name.end() ||
         type.empty();
}

}  // namespace gpuwire::wire
