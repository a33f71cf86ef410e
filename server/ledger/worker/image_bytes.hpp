// The memory of a loaded program image on the device and on the host.
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
// (replay/module_calls.cpp). Empty: the bound is unknown.
std::optional<VariableBytes> image_device_bytes(const void* image);

// The driver's host memory for an image.
struct HostBytes {
  // The decompressed contents, until the image is unloaded.
  uint64_t kept = 0;
  // The total while the driver reads or compiles the image.
  uint64_t while_loading = 0;
};

// Computes the bytes of the largest entry of a container from the headers, without decompressing. The error: an invalid
// container, or an entry that claims more than kDecompressedBytesMax.
tl::expected<HostBytes, fatbin::Error> image_host_bytes(const void* image);

// For tests.
std::optional<uint64_t> cubin_device_bytes(std::span<const uint8_t> cubin);
std::optional<VariableBytes> ptx_device_bytes(std::span<const uint8_t> text);

}  // namespace gpuwire::server
