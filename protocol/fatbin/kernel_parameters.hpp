// The parameters of the kernels in a program's image: the offset of each in the packed parameters, and its length. The
// client packs parameters for a launch by copying that many bytes of the program's memory, and need not ask the server
// for the number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/fatbin/fatbin.hpp"

namespace gpuwire::fatbin {

// For one kernel: CUDA C++ Programming Guide, "__global__ Function Parameters" (CUDA 12.1 and later, sm_70 and later).
inline constexpr uint32_t kParameterBytesMax = 32764;
// Each parameter has at least one byte.
inline constexpr size_t kParametersMax = 4096;

struct ParameterLayout {
  // The offset and size of each parameter, in bytes; both have the same length.
  std::vector<uint32_t> offsets, sizes;
  // The size of the packed parameters.
  uint32_t bytes = 0;

  // Appends a parameter. Returns false if it ends beyond kParameterBytesMax, or if there are too many.
  bool add(uint64_t offset, uint64_t size);
  bool operator==(const ParameterLayout&) const = default;
};

// By the kernel's name. A kernel is missing if the image does not describe its parameters.
using KernelParameterTable = std::map<std::string, ParameterLayout, std::less<>>;

// Adds the kernels of an uncompressed entry, or of an image that is one: PTX or a cubin. For a kernel that the table
// has already, the first entry stays. Unreadable parts are skipped.
void read_ptx_parameters(std::string_view ptx, KernelParameterTable& table);
void read_cubin_parameters(std::span<const uint8_t> cubin, KernelParameterTable& table);
// Adds the kernels of all entries of a container, or of several consecutive entries.
void read_entries_parameters(std::span<const Entry> entries, KernelParameterTable& table);

}  // namespace gpuwire::fatbin
