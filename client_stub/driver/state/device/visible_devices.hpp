// CUDA_VISIBLE_DEVICES: the server's devices that the program sees, and their order.
#pragma once

#include <vector>

#include <tl/expected.hpp>

#include "client_stub/session/session.hpp"

namespace gpuwire::client {

// Returns the server's ordinals. `text` is null if the variable is not set (all devices); otherwise it is a list of
// ordinals, whose digits any text may follow, and of UUIDs or their beginnings ("GPU-6ac2"). The first entry that names
// no device ends the list, as in the CUDA programming guide. CUDA_ERROR_INVALID_DEVICE: the list names a device twice
// (as measured on driver 580).
tl::expected<std::vector<int>, CUresult> visible_devices(const char* text, const std::vector<DeviceFacts>& devices);

}  // namespace gpuwire::client
