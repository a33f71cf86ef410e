#pragma once

#include <optional>

#include <cuda.h>

namespace gpuwire::software_device {

struct Device;

// The value of an attribute; nothing for a number that CUDA 13.0 does not know.
std::optional<int> device_attribute(const Device& device, CUdevice_attribute attribute);

}  // namespace gpuwire::software_device
