// The driver's memory on this machine while it reads or compiles an image, for each byte of its contents.
#pragma once

#include <cstdint>

namespace gpuwire::server {

// A compiler's data for each byte of PTX, and copies of a cubin while it is read: generous, since there is no exact
// figure.
inline constexpr uint64_t kCompilerHostFactor = 16, kLoaderHostFactor = 2;

}  // namespace gpuwire::server
