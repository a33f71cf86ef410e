#pragma once

#include <optional>

#include <cuda.h>

namespace gpuwire::software_device {

struct Device;

// Returns the value of an attribute, or nothing for a number that CUDA 13.0 does not define.
std::optional<int> device_attribute(const Device& device, CUdevice_attribute attribute);

}  // namespace gpuwire::software_device
