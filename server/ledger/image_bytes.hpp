// How much of a device's memory a program image takes when it is loaded.
#pragma once

#include <cstdint>
#include <span>

#include "protocol/fatbin/fatbin.hpp"

namespace gpuwire::server {

// Of a cubin: the sections that are loaded, with those that are all zeroes. Of PTX: its variables, and its length for the code. Of a fat binary: the entry
// that the device takes. The image's own lengths have been checked (replay/module_calls.cpp); what cannot be read counts as it lies in memory.
uint64_t image_device_bytes(const void* image, fatbin::ComputeCapability device);

// For tests.
uint64_t cubin_device_bytes(std::span<const uint8_t> cubin);
uint64_t ptx_device_bytes(std::span<const uint8_t> text);

}  // namespace gpuwire::server
