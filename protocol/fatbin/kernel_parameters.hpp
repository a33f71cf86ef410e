// The parameters of the kernels in a program's image: the place of each in the packed parameters, and its length. The
// code that packs parameters for a launch copies that many bytes of its own memory, and should not have to ask the
// server for their number.
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

// Of one kernel: CUDA C++ Programming Guide, "__global__ Function Parameters" (CUDA 12.1 and later, sm_70 and later).
inline constexpr uint32_t kParameterBytesMax = 32764;
// A parameter has a byte at least.
inline constexpr size_t kParametersMax = 4096;

struct ParameterLayout {
  std::vector<uint32_t> offsets, sizes;  // of each parameter, in bytes; as many of one as of the other
  uint32_t bytes = 0;                    // of the packed parameters

  // Behind those that are there. False: it lies beyond kParameterBytesMax, or is one too many.
  bool add(uint64_t offset, uint64_t size);
  bool operator==(const ParameterLayout&) const = default;
};

// By the kernel's name. A kernel that is not here is one of which the image does not say it.
using KernelParameterTable = std::map<std::string, ParameterLayout, std::less<>>;

// The kernels of an uncompressed entry, or of an image that is one: PTX or a cubin. They are added to the table; for a
// kernel that is there already the first entry counts. Unreadable parts are skipped.
void read_ptx_parameters(std::string_view ptx, KernelParameterTable& table);
void read_cubin_parameters(std::span<const uint8_t> cubin, KernelParameterTable& table);
// Those of all entries of a container, and of several entries one behind the other.
void read_entries_parameters(std::span<const Entry> entries, KernelParameterTable& table);

}  // namespace gpuwire::fatbin
