// Whether code of a program image can print (printf on the device).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpuwire::server {

// More than that is not searched: the largest images, of libraries, would take longer than what is won by it.
inline constexpr uint64_t kSearchedBytesMax = uint64_t{1} << 20;

// False: nothing in the image names vprintf, which is what every printf of device code calls (CUDA programming guide,
// "Formatted Output"; in PTX and in cubins alike, as nvcc 13.0 writes them). True: something does, or it cannot be
// told: an image, or what it decompresses to, is larger than kSearchedBytesMax, damaged, or holds something else than
// PTX and cubins. Takes any bytes; up to a millisecond.
bool may_print(std::span<const std::byte> image);

}  // namespace gpuwire::server
