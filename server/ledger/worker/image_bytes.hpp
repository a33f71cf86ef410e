// How much memory a program image takes when it is loaded, of the device and of this machine.
#pragma once

#include <cstdint>
#include <span>

#include <tl/expected.hpp>

#include "protocol/fatbin/fatbin.hpp"
#include "server/replay/module/compiler_memory.hpp"

namespace gpuwire::server {

// Of a cubin: the sections that are loaded, with those that are all zeroes. Of PTX: its variables, and its length for
// the code. Of a fat binary: the entry that the device takes. The image's own lengths have been checked
// (replay/module_calls.cpp); what cannot be read counts as it lies in memory.
uint64_t image_device_bytes(const void* image, fatbin::ComputeCapability device);

// What the driver takes of this machine's memory for an image.
struct HostBytes {
  uint64_t kept = 0;           // until it is unloaded: its contents, decompressed
  uint64_t while_loading = 0;  // in all, while the driver reads or compiles it
};

// By what the headers say, of the largest entry of a container; nothing is decompressed. The error: a container that is
// none, or an entry that claims more than kDecompressedBytesMax.
tl::expected<HostBytes, fatbin::Error> image_host_bytes(const void* image);

// For tests.
uint64_t cubin_device_bytes(std::span<const uint8_t> cubin);
uint64_t ptx_device_bytes(std::span<const uint8_t> text);

}  // namespace gpuwire::server
