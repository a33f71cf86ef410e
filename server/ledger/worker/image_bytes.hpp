// How much memory a program image takes when it is loaded, of the device and of this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <tl/expected.hpp>

#include "protocol/fatbin/fatbin.hpp"
#include "server/ledger/worker/ptx_bytes.hpp"
#include "server/replay/module/compiler_memory.hpp"

namespace gpuwire::server {

// An upper bound that no spelling of the image lowers. For a cubin: all sections that may be loaded, regardless of
// their flags, including zero-filled ones. For PTX: its variables, and its length for the code. For a fat binary: the
// largest of its entries, since the driver chooses. The image's own lengths have been checked
// (replay/module_calls.cpp). None: only the driver knows.
std::optional<VariableBytes> image_device_bytes(const void* image);

// The driver's memory on this machine for an image.
struct HostBytes {
  uint64_t kept = 0;           // until it is unloaded: its contents, decompressed
  uint64_t while_loading = 0;  // in all, while the driver reads or compiles it
};

// By the headers, of the largest entry of a container; nothing is decompressed. The error: an invalid container, or an
// entry that claims more than kDecompressedBytesMax.
tl::expected<HostBytes, fatbin::Error> image_host_bytes(const void* image);

// For tests.
std::optional<uint64_t> cubin_device_bytes(std::span<const uint8_t> cubin);
std::optional<VariableBytes> ptx_device_bytes(std::span<const uint8_t> text);

}  // namespace gpuwire::server
