// CUDA_VISIBLE_DEVICES: which of the server's devices the program sees, and in which order.
#pragma once

#include <vector>

#include <tl/expected.hpp>

#include "client_stub/session/session.hpp"

namespace gpuwire::client {

// The server's ordinals. `text`: null when the variable is not set (all devices), else a list of ordinals, behind whose
// digits anything may stand, and of UUIDs or beginnings of one ("GPU-6ac2"); the first entry that names no device ends
// the list, as in the CUDA programming guide. CUDA_ERROR_INVALID_DEVICE: a device is named twice (as measured on driver
// 580).
tl::expected<std::vector<int>, CUresult> visible_devices(const char* text, const std::vector<DeviceFacts>& devices);

}  // namespace gpuwire::client
