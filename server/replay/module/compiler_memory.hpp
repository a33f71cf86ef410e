// The driver's host memory while it reads or compiles an image, in multiples of the image's contents.
#pragma once

#include <cstdint>

namespace gpuwire::server {

// The compiler's data for each byte of PTX, and the copies of a cubin while it is read. The factors are generous, since
// there is no exact figure.
inline constexpr uint64_t kCompilerHostFactor = 16, kLoaderHostFactor = 2;

}  // namespace gpuwire::server
