// CUDA_VISIBLE_DEVICES: which of the server's devices the program sees, and in which order.
#pragma once

#include <vector>

#include "client_stub/session/session.hpp"

namespace gpuwire::client {

// The server's ordinals. `text`: null when the variable is not set (all devices), else a list of ordinals and of UUIDs
// or beginnings of one ("GPU-6ac2"); the first entry that names no device ends it, and a device named twice leaves
// none, as in the CUDA programming guide.
std::vector<int> visible_devices(const char* text, const std::vector<DeviceFacts>& devices);

}  // namespace gpuwire::client
