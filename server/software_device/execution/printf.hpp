// printf of device code.
#pragma once

#include <cstdint>
#include <string>

#include "server/software_device/execution/warp.hpp"

namespace gpuwire::software_device {

// Formats one lane's message. `format` is the address of a string, and `arguments` of a buffer in which each value has
// its own alignment, as C passes it to a variadic function (CUDA C++ guide, "Formatted Output"). `converted` is set to
// the number of used arguments, which device printf returns. Returns false after a fault.
bool format_message(Warp& w, const Op& op, unsigned lane, uint64_t format, uint64_t arguments, std::string& text,
                    int& converted);

}  // namespace gpuwire::software_device
