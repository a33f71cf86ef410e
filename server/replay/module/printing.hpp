// Whether code of a program image can print (printf on the device).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpuwire::server {

// Larger images are not searched: for the large images of libraries the search would take longer than it saves.
inline constexpr uint64_t kSearchedBytesMax = uint64_t{1} << 20;

// Returns false if nothing in the image names vprintf, which every printf of device code calls (CUDA programming guide,
// "Formatted Output"; in PTX and in cubins alike, as nvcc 13.0 writes them). Returns true if something names it, or the
// image, or its decompressed form, is larger than kSearchedBytesMax, damaged, or holds anything but PTX and cubins.
// Accepts any bytes; takes up to a millisecond.
bool may_print(std::span<const std::byte> image);

}  // namespace gpuwire::server
