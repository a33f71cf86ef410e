// The device memory of the variables that a PTX text declares.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace gpuwire::server {

struct VariableBytes {
  // In each context where the program is loaded.
  uint64_t plain = 0;
  // Once on a device, regardless of the number of contexts.
  uint64_t managed = 0;
};

// An upper bound for every spelling of the text: tokens are those of ptxas (CUDA 13.0), and a text that ptxas would
// refuse may count as anything. Empty: the text declares memory in an unknown way.
std::optional<VariableBytes> variable_bytes(std::string_view ptx);

}  // namespace gpuwire::server
