// The memory of this machine that the driver's linker takes for an input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <cuda.h>

namespace gpuwire::server {

// By the input's headers; nothing is decompressed. Fat binaries count wherever they stand in it: objects and archives
// of a host's compiler hold some. Empty: the linker may not see the input: a wrapper, whose pointers would be followed
// here, or a fat binary that is damaged or claims more than fatbin::kDecompressedBytesMax.
std::optional<uint64_t> link_input_host_bytes(CUjitInputType type, std::span<const std::byte> input);

}  // namespace gpuwire::server
