// The host memory that the driver's linker takes for an input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <cuda.h>

namespace gpuwire::server {

// Computes the bytes from the input's headers without decompressing. Fat binaries count at any place in the input,
// because objects and archives of a host compiler contain some. Returns nothing if the input must not reach the linker:
// it is a wrapper, whose pointers the driver would follow, or has a fat binary that is damaged or claims more than
// fatbin::kDecompressedBytesMax.
std::optional<uint64_t> link_input_host_bytes(CUjitInputType type, std::span<const std::byte> input);

}  // namespace gpuwire::server
